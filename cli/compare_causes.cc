// From evidence to causes; see compare_causes.h. Each step takes the matrices that it accounts for out of `open_`, so
// that the next one looks at the rest only.
#include "compare_causes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <tuple>
#include <utility>

#include "compare_orders.h"
#include "compare_units.h"

namespace swiglu::cli {

namespace {

constexpr std::array kWeights = {Role::gate, Role::up, Role::down};

/// Relative errors of ggml's quantisers, and of 8-bit floats with a scale for each row, on trained weights; 0 for types
/// that are read as they are. With the margin normal random weights are within it too.
constexpr double kMargin = 1.5;
double error_of_type(std::string_view type) {
  constexpr std::pair<std::string_view, double> kErrors[] = {{"Q8_0", .0054},
                                                             {"Q6_K", .0177},
                                                             {"Q5_1", .0374},
                                                             {"Q5_0", .0431},
                                                             {"Q5_K", .0361},
                                                             {"Q4_1", .0765},
                                                             {"Q4_0", .0856},
                                                             {"Q4_K", .0707},
                                                             {"Q3_K", .149},
                                                             {"Q2_K", .296},
                                                             {"IQ4_NL", .08},
                                                             {"IQ4_XS", .08},
                                                             {"MXFP4", .116},
                                                             {"NVFP4", .116},
                                                             {"F8_E4M3", .027},
                                                             {"F8_E5M2", .054},
                                                             {"torch.float8_e4m3fn", .027},
                                                             {"torch.float8_e5m2", .054}};
  for (const auto& [name, error] : kErrors) {
    if (name == type) return error;
  }
  return 0;
}

class Explainer {
 public:
  explicit Explainer(const Evidence& evidence) : e_(evidence) {
    for (const Role role : kRoles) {
      if (e_.differs(role)) open_.push_back(role);
    }
  }

  std::vector<Cause> causes() {
    zeros();
    if (e_.hidden_a != e_.hidden_b) {
      take(explain_width(e_));
    } else {
      swapped();
      transposed();
      take(explain_units(e_, open_));
    }
    norm_folded();
    numbers();
    other_layers();
    quantised();
    unknown();
    return std::move(causes_);
  }

 private:
  [[nodiscard]] bool open(Role role) const { return std::find(open_.begin(), open_.end(), role) != open_.end(); }

  /// Matrices of which the same is true share a cause.
  void add(Cause cause) {
    for (const Role role : cause.roles) std::erase(open_, role);
    if (cause.general.empty()) cause.general = cause.text;
    const auto same =
        std::find_if(causes_.begin(), causes_.end(), [&](const Cause& c) { return c.text == cause.text; });
    if (same == causes_.end()) {
      causes_.push_back(std::move(cause));
    } else {
      same->roles.insert(same->roles.end(), cause.roles.begin(), cause.roles.end());
    }
  }
  void take(std::vector<Cause> causes) {
    for (Cause& cause : causes) add(std::move(cause));
  }

  /// First, because blocks of zeros are also blocks that repeat each other.
  void zeros() {
    for (const Role role : kRoles) {
      const Relations& r = e_.matrices[role].relations;
      if (!open(role) || !(r.b_is_a_or_0 || r.a_is_b_or_0)) continue;
      const char* bad = r.b_is_a_or_0 ? "B" : "A";
      const char* good = r.b_is_a_or_0 ? "A" : "B";
      add({"zeros",
           {role},
           fmt::format("elements of {} are 0 where {} has others, and all else is the same", bad, good),
           fmt::format("look for a piece that was never written, or pruned, in {}", bad),
           "",
           false});
    }
  }

  void swapped() {
    const bool up_in_gate = open(Role::gate) && e_.b[Role::gate] == e_.a[Role::up];
    const bool gate_in_up = open(Role::up) && e_.b[Role::up] == e_.a[Role::gate];
    if (up_in_gate && gate_in_up) {
      add({"gate_up_swapped",
           {Role::gate, Role::up},
           "gate and up are swapped: B's gate is A's up, B's up is A's gate",
           "exchange gate_proj and up_proj (w1 and w3) where one of the checkpoints was written",
           "",
           false});
    } else if (up_in_gate || gate_in_up) {
      add({"matrix_repeated",
           {up_in_gate ? Role::gate : Role::up},
           up_in_gate ? "B's gate is A's up, which is B's up too: up was written twice and gate is missing"
                      : "B's up is A's gate, which is B's gate too: gate was written twice and up is missing",
           "write B anew with w1 as gate_proj and w3 as up_proj",
           "",
           false});
    }
    if (up_in_gate || gate_in_up) return;
    const bool twice_in_a = e_.a[Role::gate] == e_.a[Role::up] && !e_.a[Role::gate].rows.empty();
    for (const Role role : {Role::gate, Role::up}) {
      const Role other = role == Role::gate ? Role::up : Role::gate;
      if (!twice_in_a || !open(role) || e_.a[role] != e_.b[other]) continue;
      add({"matrix_repeated",
           {role},
           fmt::format("A's {} is its {} once more, where B has another: A's {} is missing", name_of(role),
                       name_of(other), name_of(role)),
           "write A anew with w1 as gate_proj and w3 as up_proj",
           "",
           false});
    }
  }

  void transposed() {
    for (const Role role : kWeights) {
      const Hashes& a = e_.a[role];
      const Hashes& b = e_.b[role];
      if (!open(role) || a.rows != b.cols || a.cols != b.rows) continue;
      add({"transposed",
           {role},
           "B holds A's matrix transposed",
           "transpose it where B was written: gate and up are [hidden, dim], down is [dim, hidden]",
           "",
           false});
    }
  }

  /// gate and up see norm * h only, so a factor may move from one to the other.
  void norm_folded() {
    if (!open(Role::norm)) return;
    for (const Role role : {Role::gate, Role::up}) {
      const auto& f = e_.factors[role];
      if (!open(role) || !f || f->of != Factors::Of::column) return;
      for (std::size_t i = 0; i < f->columns.size(); ++i) {
        const auto left = static_cast<double>(e_.norm_a[i]), right = static_cast<double>(e_.norm_b[i]);
        if (!(std::fabs(f->columns[i] * right - left) <= 2 * f->tolerance * std::fabs(left))) return;
      }
    }
    add({"norm_folded",
         {Role::norm, Role::gate, Role::up},
         "norm weights were multiplied into the columns of gate and up, or taken out: the function is the same, but "
         "for "
         "rounding",
         "nothing is wrong",
         "",
         true});
  }

  void numbers() {
    for (const Role role : kRoles) {
      if (!open(role) || e_.matrices[role].match != Match::different) continue;
      const Relations& r = e_.matrices[role].relations;
      if (r.b_is_a_cut || r.a_is_b_cut) {
        add({"truncated_to_bf16",
             {role},
             fmt::format("{} is {} cut off to bf16 instead of rounded", r.b_is_a_cut ? "B" : "A",
                         r.b_is_a_cut ? "A" : "B"),
             fmt::format("round to nearest even where {} was written", r.b_is_a_cut ? "B" : "A"),
             "",
             false});
      } else if (role == Role::norm && (r.b_is_a_plus_1 || r.a_is_b_plus_1)) {
        const char* stored = r.b_is_a_plus_1 ? "A" : "B";
        add({"norm_plus_one",
             {role},
             fmt::format("{} is {} + 1: {} holds w of a norm that multiplies by 1 + w, as Gemma's",
                         r.b_is_a_plus_1 ? "B" : "A", stored, stored),
             fmt::format("add 1 to the norm weights of {}, which are read as factors here", stored),
             "",
             false});
      } else if (e_.factors[role]) {
        scaled(role, *e_.factors[role]);
      }
    }
  }

  void scaled(Role role, const Factors& f) {
    const bool matrix = f.of == Factors::Of::matrix;
    const char* each = f.of == Factors::Of::row ? "row" : "column";
    const bool flipped =
        matrix ? std::fabs(f.least + 1) <= f.tolerance : std::fabs(f.least + 1) < 0.01 && std::fabs(f.most - 1) < 0.01;
    const std::string range = fmt::format("{:.4g} to {:.4g}", f.least, f.most);
    if (flipped) {
      add({"sign_flipped",
           {role},
           matrix ? "the signs are flipped" : fmt::format("the signs of some {}s are flipped", each),
           "look for a minus where B was written",
           "",
           false});
    } else if (matrix) {
      add({"constant_factor",
           {role},
           fmt::format("every element of B is {:.{}g} times that of A", f.least, f.tolerance > 1e-4 ? 3 : 6),
           "a scale was applied twice or left out where one of them was written",
           "B is A times a constant",
           false});
    } else if (f.scale == Factors::Scale::applied_again) {
      add({"scale_applied_twice",
           {role},
           fmt::format("each row of B is A's times a factor of its own ({}) that goes with the row's largest element, "
                       "as scales of quantised rows do: the scales were applied twice",
                       range),
           "apply the scales once where B was written",
           "each row of B is A's times a factor that goes with its largest element: the scales were applied twice",
           false});
    } else if (f.scale == Factors::Scale::left_out) {
      add({"scale_left_out",
           {role},
           fmt::format("each row of B is A's divided by a scale that goes with the row's largest element (factors {}): "
                       "the scales of quantised rows were left out",
                       range),
           "apply the scales where B was written",
           "each row of B is A's divided by a scale that goes with its largest element: the scales were left out",
           false});
    } else {
      add({fmt::format("{}_factors", each),
           {role},
           fmt::format("each {} of B is A's times a factor of its own ({})", each, range),
           fmt::format("look for scales by {} that were applied twice or left out, or folded in from elsewhere", each),
           fmt::format("each {} of B is A's times a factor of its own", each),
           false});
    }
  }

  void other_layers() {
    for (const bool b_is_bad : {true, false}) {
      for (const Role role : kRoles) {
        const auto& from = b_is_bad ? e_.layer_in_a[role] : e_.layer_in_b[role];
        if (!open(role) || !from) continue;
        const char* bad = b_is_bad ? "B" : "A";
        const char* good = b_is_bad ? "A" : "B";
        const std::int64_t by = std::abs(*from - e_.layer);
        add({"other_layer",
             {role},
             fmt::format("{}'s layer {} holds {}'s layer {}", bad, e_.layer, good, *from),
             "mend the numbers of the layers where one of them was written",
             fmt::format("{} holds what {} holds {} layer{} {}", bad, good, by, by == 1 ? "" : "s",
                         *from > e_.layer ? "later" : "earlier"),
             false});
      }
    }
  }

  /// Last, because it is the size of the error that speaks for it, not its kind: nothing else leaves so small a one.
  void quantised() {
    for (const Role role : kRoles) {
      if (!open(role) || e_.matrices[role].match != Match::different) continue;
      const double error = e_.matrices[role].relative_error;
      for (const auto& [side, other, type] : {std::tuple{"B", "A", e_.type_b[role]}, {"A", "B", e_.type_a[role]}}) {
        if (!open(role) || error > kMargin * error_of_type(type)) continue;
        add({"quantised",
             {role},
             fmt::format("{} holds them as {}, and an error of {:.1e} is what that type leaves of {}'s", side, type,
                         error, other),
             "",
             fmt::format("{} holds them as {}, and the error is what that type leaves of {}'s", side, type, other),
             false});
      }
    }
  }

  void unknown() {
    if (open_.empty()) return;
    std::string where;
    for (const Role role : open_) {
      const auto rows = differing_range(e_.a[role].rows, e_.b[role].rows);
      const auto all = std::ssize(e_.a[role].rows);
      if (e_.matrices[role].match != Match::different || !rows || rows->last - rows->first + 1 == all) continue;
      where += fmt::format("; all of {} but row{} is the same", name_of(role),
                           rows->first == rows->last ? fmt::format(" {}", rows->first)
                                                     : fmt::format("s {} to {}", rows->first, rows->last));
    }
    const std::string text = e_.hidden_a != e_.hidden_b ? unknown_width(e_) : "no known cause explains the difference";
    causes_.push_back({"unknown", std::move(open_), text + where, "", text, false});
  }

  const Evidence& e_;
  std::vector<Role> open_;
  std::vector<Cause> causes_;
};

}  // namespace

const char* name_of(Role role) {
  constexpr std::array kNames = {"norm", "gate", "up", "down"};
  return kNames[static_cast<std::size_t>(role)];
}

std::string show_roles(const std::vector<Role>& roles) {
  std::vector<std::string> names;
  names.reserve(roles.size());
  for (const Role role : roles) names.emplace_back(name_of(role));
  std::string text = names.back();
  names.pop_back();
  return names.empty() ? text : fmt::format("{} and {}", fmt::join(names, ", "), text);
}

std::vector<Cause> explain(const Evidence& evidence) { return Explainer(evidence).causes(); }

std::vector<Role> unexplained(const std::vector<Cause>& causes) {
  if (causes.empty() || causes.back().kind != "unknown") return {};
  return causes.back().roles;
}

}  // namespace swiglu::cli
