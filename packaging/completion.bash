# shellcheck shell=bash
# Completion for bash, of swiglu and swiglu-mpi. It knows no command and no flag: it asks the program on the line
# for its help each time, so it is never older than the program. Values are completed where the help lists words.

# Words that a flag's description names as its values: "automatic (default), f32 or bf16", "hf: ...; meta: ...",
# "Of the output: f32, bf16". A clause that is no such list, nor one such word before a colon, names none.
_swiglu_values() {
  local text=$1 word='[a-z0-9_]+(-[a-z0-9.]+)*' list clause head
  list="^(or )?$word((, or |, | or )$word)*(, \.\.\.)?$"
  while [[ $text =~ ^([^\(]*[^\( ])?\ *\([^\)]*\)(.*)$ ]]; do text=${BASH_REMATCH[1]}${BASH_REMATCH[2]}; done
  text=${text/#Of automatic/automatic}
  while [[ -n $text ]]; do
    clause=${text%%;*}
    [[ $text == *";"* ]] && text=${text#*;} || text=""
    clause=${clause#"${clause%%[! ]*}"}
    head=${clause%%:*}
    clause=${clause#*: }
    if [[ ! $clause =~ $list ]]; then clause=$head; fi
    if [[ $clause =~ $list ]]; then
      clause=${clause//, / }
      clause=" ${clause//.../} "
      printf '%s\n' "${clause// or / }"
    fi
  done
}

_swiglu() {
  local program=${COMP_WORDS[0]/#\~\//$HOME/} word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}
  local help line command="" names value about flags=() words="" index
  COMPREPLY=()
  if [[ $word == "=" ]]; then
    word=""
  elif [[ $before == "=" ]]; then
    before=${COMP_WORDS[COMP_CWORD-2]}
  fi
  for ((index = 1; index < COMP_CWORD; index++)); do
    if [[ ${COMP_WORDS[index]} != -* ]]; then command=${COMP_WORDS[index]} && break; fi
  done
  if [[ -z $command ]]; then
    help=$("$program" --help 2>/dev/null </dev/null)
    while IFS= read -r line; do
      if [[ $line =~ ^\ \ ([a-z]+)\ \  ]]; then words+=" ${BASH_REMATCH[1]}"; fi
    done <<<"$help"
  else
    help=$("$program" "$command" --help 2>/dev/null </dev/null)
  fi
  while IFS= read -r line; do
    [[ $line =~ ^\ \ (-[^ ]+)(\ .*)?$ ]] || continue
    names=${BASH_REMATCH[1]}
    line=${BASH_REMATCH[2]# }
    value=${line%%  *}
    about=${line#"$value"}
    value=${value%(required)}
    value=${value% }
    IFS=, read -ra names <<<"$names"
    flags+=("${names[@]}")
    # The flag before the cursor takes a value. One in brackets may be left out, so other words may follow too.
    [[ -n $value && " ${names[*]} " == *" $before "* && $word != -* ]] || continue
    case $value in
      *[.\[]* | FILE | OUT) words="" && break ;;
      *"|"*) words=${value#*|} ;;
      [a-z]*) words=$value ;;
      *) words=$(_swiglu_values "${about#"${about%%[! ]*}"}") ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
    return
  done <<<"$help"
  if [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "${flags[*]}" -- "$word")
  elif [[ -n $words ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  else
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
  fi
}
complete -F _swiglu swiglu swiglu-mpi
