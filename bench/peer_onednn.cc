// oneDNN as a fair expert would use it: weights packed once into the format that the primitive asks for, silu,
// the product with up and the residual fused as post-ops, scratchpads of our own, all on huge pages. Both kinds
// of primitive that can do it are tried for each number of tokens, and the faster one is kept. The only
// home of dnnl.hpp.
#include <fmt/format.h>
#include <dnnl.hpp>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include "peer.h"
#include "peer_loops.h"

extern "C" void omp_set_num_threads(int threads);  // of omp.h, which clang-tidy does not find beside gcc's OpenMP

namespace swiglu::bench {
namespace {

using Tag = dnnl::memory::format_tag;

/// A memory object together with its memory.
struct Held {
  Buffer bytes;
  dnnl::memory memory;
  Held(const dnnl::memory::desc& desc, const dnnl::engine& engine)
      : bytes(static_cast<std::int64_t>(desc.get_size())), memory(desc, engine, bytes.data()) {}
};

enum class Kind : std::uint8_t { matmul, inner_product };
constexpr std::pair<Kind, const char*> kKinds[] = {{Kind::matmul, "matmul"}, {Kind::inner_product, "inner_product"}};

/// What follows a product: silu of it, its product with another operand, or its sum with one.
enum class After : std::uint8_t { swish, multiply, add };

/// out = after(in · weightsᵀ): one matrix, [outputs, inputs] row-major in the checkpoint.
struct Product {
  dnnl::primitive primitive;
  std::unordered_map<int, dnnl::memory> arguments;
  std::shared_ptr<Held> weights;
  std::shared_ptr<Held> scratchpad;
  std::string implementation;
};

/// The three products for one number of tokens.
struct Plan {
  const char* kind = nullptr;
  std::array<Product, 3> products;
  double seconds = 0;  ///< the best of its trials

  [[nodiscard]] std::string text() const {
    std::string text = fmt::format("{} {}", kind, products[0].implementation);
    if (products[1].implementation != products[0].implementation ||
        products[2].implementation != products[0].implementation) {
      text += fmt::format(", {}, {}", products[1].implementation, products[2].implementation);
    }
    return text;
  }
};

// oneDNN 3 (Ubuntu 24.04, Debian 13) turned arguments round and dropped a scale.
#if DNNL_VERSION_MAJOR >= 3
void append_swish(dnnl::post_ops& ops) { ops.append_eltwise(dnnl::algorithm::eltwise_swish, 1.0F, 0.0F); }
template <class Description, class... Rest>
Description describe(const dnnl::primitive_attr& attributes, const dnnl::engine& engine, const Rest&... rest) {
  return Description(engine, rest..., attributes);
}
#else
void append_swish(dnnl::post_ops& ops) { ops.append_eltwise(1.0F, dnnl::algorithm::eltwise_swish, 1.0F, 0.0F); }
template <class Description, class... Rest>
Description describe(const dnnl::primitive_attr& attributes, const dnnl::engine& engine, const Rest&... rest) {
  return Description({rest...}, attributes, engine);
}
#endif

const char* isa_name(dnnl::cpu_isa isa) {
  constexpr std::pair<dnnl::cpu_isa, const char*> kNames[] = {{dnnl::cpu_isa::sse41, "sse41"},
                                                              {dnnl::cpu_isa::avx, "avx"},
                                                              {dnnl::cpu_isa::avx2, "avx2"},
                                                              {dnnl::cpu_isa::avx2_vnni, "avx2_vnni"},
                                                              {dnnl::cpu_isa::avx512_core, "avx512_core"},
                                                              {dnnl::cpu_isa::avx512_core_vnni, "avx512_core_vnni"},
                                                              {dnnl::cpu_isa::avx512_core_bf16, "avx512_core_bf16"},
#if DNNL_VERSION_MAJOR >= 3
                                                              {dnnl::cpu_isa::avx512_core_fp16, "avx512_core_fp16"},
#endif
                                                              {dnnl::cpu_isa::avx512_core_amx, "avx512_core_amx"}};
  const auto* found = std::find_if(std::begin(kNames), std::end(kNames), [&](const auto& n) { return n.first == isa; });
  return found == std::end(kNames) ? "unknown" : found->second;
}

class OneDnn final : public Peer {
 public:
  OneDnn(const Problem& problem, std::string only)
      : problem_(problem), only_(std::move(only)), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_),
        type_(problem.dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32) {
    omp_set_num_threads(problem.threads);  // what oneDNN plans for, too
  }

  [[nodiscard]] std::string name() const override {
    const dnnl_version_t* v = dnnl_version();
    return fmt::format("oneDNN {}.{}.{}", v->major, v->minor, v->patch);
  }
  [[nodiscard]] std::string about() const override {
    const bool openmp = dnnl_version()->cpu_runtime == DNNL_RUNTIME_OMP;
    return fmt::format("effective ISA {}, threads by {}", isa_name(dnnl::get_effective_cpu_isa()),
                       openmp ? "OpenMP" : "something else than OpenMP");
  }
  [[nodiscard]] std::string setting() const override { return plan_.text(); }

  void prepare(std::int64_t tokens) override {
    const auto [dim, hidden, eps] = problem_.config;
    tokens_ = tokens;
    plan_ = {};
    norm_ = std::make_unique<Held>(dense(tokens, dim), engine_);
    gate_ = std::make_unique<Held>(dense(tokens, hidden), engine_);
    up_ = std::make_unique<Held>(dense(tokens, hidden), engine_);
    out_ = std::make_unique<Held>(dense(tokens, dim), engine_);
    h_ = dnnl::memory(dense(tokens, dim), engine_, problem_.h.data());
    for (const auto& [kind, name] : kKinds) {
      if (!only_.empty() && only_ != name) continue;
      Plan plan{.kind = name,
                .products = {make(kind, 0, norm_->memory, gate_->memory, After::swish, gate_->memory),
                             make(kind, 1, norm_->memory, up_->memory, After::multiply, gate_->memory),
                             make(kind, 2, up_->memory, out_->memory, After::add, h_)}};
      if (only_.empty()) try_out(plan);
      if (plan_.kind == nullptr || plan.seconds < plan_.seconds) std::swap(plan_, plan);
    }
    for (auto& held : packed_) std::erase_if(held, [](const auto& weights) { return weights.use_count() == 1; });
  }

  double run() override { return run(plan_); }
  [[nodiscard]] const std::byte* output() const override { return out_->bytes.data(); }

 private:
  [[nodiscard]] dnnl::memory::desc dense(std::int64_t rows, std::int64_t cols) const {
    return {{rows, cols}, type_, Tag::ab};
  }

  Product make(Kind kind, std::size_t which, const dnnl::memory& in, const dnnl::memory& out, After after,
               const dnnl::memory& operand) {
    dnnl::post_ops then;
    if (after == After::swish) append_swish(then);
    if (after == After::multiply) then.append_binary(dnnl::algorithm::binary_mul, operand.get_desc());
    if (after == After::add) then.append_binary(dnnl::algorithm::binary_add, operand.get_desc());
    dnnl::primitive_attr attributes;
    attributes.set_post_ops(then);
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const auto [dim, hidden, eps] = problem_.config;
    const std::int64_t inputs = which == 2 ? hidden : dim;
    const std::int64_t outputs = which == 2 ? dim : hidden;
    Product product;
    const auto finish = [&](const auto& description, const dnnl::memory::desc& stored) {
      product.implementation = description.impl_info_str();
      product.weights = pack(which, stored, description.weights_desc());
      product.scratchpad = std::make_shared<Held>(description.scratchpad_desc(), engine_);
    };
    if (kind == Kind::matmul) {
      const dnnl::memory::desc any({inputs, outputs}, type_, Tag::any);
      const auto description =
          describe<dnnl::matmul::primitive_desc>(attributes, engine_, in.get_desc(), any, out.get_desc());
      finish(description, {{inputs, outputs}, type_, Tag::ba});
      product.primitive = dnnl::matmul(description);
    } else {
      const dnnl::memory::desc any({outputs, inputs}, type_, Tag::any);
      const auto description = describe<dnnl::inner_product_forward::primitive_desc>(
          attributes, engine_, dnnl::prop_kind::forward_inference, in.get_desc(), any, out.get_desc());
      finish(description, {{outputs, inputs}, type_, Tag::ab});
      product.primitive = dnnl::inner_product_forward(description);
    }
    product.arguments = {{DNNL_ARG_SRC, in},
                         {DNNL_ARG_WEIGHTS, product.weights->memory},
                         {DNNL_ARG_DST, out},
                         {DNNL_ARG_SCRATCHPAD, product.scratchpad->memory}};
    if (after != After::swish) {
      product.arguments.emplace(DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, operand);
    }
    return product;
  }

  /// The matrix in the wanted format; made only if no earlier number of tokens left it.
  std::shared_ptr<Held> pack(std::size_t which, const dnnl::memory::desc& stored, const dnnl::memory::desc& wanted) {
    auto& held = packed_[which];
    for (const auto& weights : held) {
      if (weights->memory.get_desc() == wanted) return weights;
    }
    const Buffer* const sources[] = {&problem_.gate, &problem_.up, &problem_.down};
    dnnl::memory source(stored, engine_, sources[which]->data());
    held.push_back(std::make_shared<Held>(wanted, engine_));
    dnnl::reorder(source, held.back()->memory).execute(stream_, source, held.back()->memory);
    stream_.wait();
    return held.back();
  }

  double run(const Plan& plan) {
    const auto [dim, hidden, eps] = problem_.config;
    const auto norm = [&]<class T>(T) {
      rms_norm(reinterpret_cast<const T*>(problem_.h.data()), problem_.norm.data(), static_cast<float>(eps), tokens_,
               dim, reinterpret_cast<T*>(norm_->bytes.data()), problem_.threads);
    };
    return seconds_of([&] {
      if (problem_.dtype == DType::bf16) {
        norm(std::uint16_t{});
      } else {
        norm(float{});
      }
      for (const Product& product : plan.products) product.primitive.execute(stream_, product.arguments);
      stream_.wait();
    });
  }

  void try_out(Plan& plan) {
    constexpr double kSeconds = 0.4;
    plan.seconds = run(plan);
    for (double spent = 0; spent < kSeconds;) {
      const double seconds = run(plan);
      spent += seconds;
      plan.seconds = std::min(plan.seconds, seconds);
    }
  }

  const Problem& problem_;
  const std::string only_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  const dnnl::memory::data_type type_;
  std::int64_t tokens_ = 0;
  std::array<std::vector<std::shared_ptr<Held>>, 3> packed_;
  std::unique_ptr<Held> norm_, gate_, up_, out_;
  dnnl::memory h_;
  Plan plan_;
};

}  // namespace

std::unique_ptr<Peer> make_onednn(const Problem& problem, const std::string& setting) {
  return std::make_unique<OneDnn>(problem, setting);
}

}  // namespace swiglu::bench
