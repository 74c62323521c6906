#!/usr/bin/env bash
# Drives the completion as bash does: the words on the line, the word under the cursor, then COMPREPLY.
# usage: SWIGLU_BIN=... [SWIGLU_MPI_BIN=...] check_completion.sh SOURCE_FOLDER
# shellcheck disable=SC2034  # COMP_WORDS and COMP_CWORD are read by the completion
set -uo pipefail
# shellcheck source=packaging/completion.bash
source "$1/packaging/completion.bash"
folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT
cd "$folder" && mkdir model && touch "model x.npy" other
failed=0

complete_line() {  # WORD...: the cursor is on the last
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
  _swiglu
}
expect() {  # WHAT WORD...: the completions of the line before, in any order
  local what=$1 found wanted
  found=$(printf '%s\n' "${COMPREPLY[@]}" | sort) wanted=$(printf '%s\n' "${@:2}" | sort)
  if [[ $found != "$wanted" ]]; then
    printf '%s: expected %s, found %s\n' "$what" "${wanted//$'\n'/, }" "${found//$'\n'/, }"
    failed=1
  fi
}
listed() { sed -nE "s/^  ($1) .*/\1/p"; }

mapfile -t commands < <("$SWIGLU_BIN" --help | listed '[a-z]+')
complete_line "$SWIGLU_BIN" "" && expect "commands" "${commands[@]}"
((${#commands[@]} >= 10)) || { echo "expected ten commands or more, found ${#commands[@]}" && failed=1; }
complete_line "$SWIGLU_BIN" co && expect "commands with co" compare convert
complete_line "$SWIGLU_BIN" --v && expect "flags without a command" --version
for command in "${commands[@]}"; do
  mapfile -t flags < <("$SWIGLU_BIN" "$command" --help | sed -nE 's/^  (-[^ ]+).*/\1/p' | tr ',' '\n' | grep -- '^--')
  complete_line "$SWIGLU_BIN" "$command" -- && expect "flags of $command" "${flags[@]}"
done

complete_line "$SWIGLU_BIN" run --compute "" && expect "run --compute" automatic f32 bf16
complete_line "$SWIGLU_BIN" run --compute = && expect "run --compute=" automatic f32 bf16
complete_line "$SWIGLU_BIN" run --compute = b && expect "run --compute=b" bf16
complete_line "$SWIGLU_BIN" run --storage "" && expect "run --storage" automatic plain compact
complete_line "$SWIGLU_BIN" run --part "" && expect "run --part" block ffn
complete_line "$SWIGLU_BIN" run --dtype "" && expect "run --dtype" f32 bf16 f16 f64
complete_line "$SWIGLU_BIN" convert --format "" && expect "convert --format" hf meta gguf
complete_line "$SWIGLU_BIN" convert --dtype q && expect "convert --dtype q" q8_0 q4_0
complete_line "$SWIGLU_BIN" verify --layer "" && expect "verify --layer" all
complete_line "$SWIGLU_BIN" run --threads "" && expect "a number has no words" ""

complete_line "$SWIGLU_BIN" inspect m && expect "files" model "model x.npy"
complete_line "$SWIGLU_BIN" run model --input m && expect "a file of a flag" model "model x.npy"
complete_line "$SWIGLU_BIN" inspect --json o && expect "files after a switch" other
complete_line "$folder/no-such-program" "" && expect "a program that does not run" model "model x.npy" other
if [[ -n ${SWIGLU_MPI_BIN:-} ]]; then
  mapfile -t commands < <("$SWIGLU_MPI_BIN" --help 2>/dev/null | listed '[a-z]+')
  complete_line "$SWIGLU_MPI_BIN" "" && expect "commands on ranks" "${commands[@]}"
  complete_line "$SWIGLU_MPI_BIN" run --wire "" && expect "run --wire" f32 bf16
fi
((failed == 0)) && echo "completed as the help says"
exit "$failed"
