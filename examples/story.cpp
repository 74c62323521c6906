// A whole Llama in one file: it reads a model and tells a story, at every step the likeliest next token.
//
//     story MODEL_FOLDER [TOKENIZER]
//
// The folder is Hugging Face's, with config.json and one model.safetensors (F32 or BF16); the tokenizer llama2.c's, by
// default tok512.bin or tokenizer.bin beside the model, or else the story is told in token ids. swiglu computes the
// feed-forward sublayers; part 1 has plain loops for the rest, part 2 reads files of which every byte may be wrong.
#include <swiglu/swiglu.hpp>

#include <algorithm>
#include <bit>
#include <charconv>
#include <chrono>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Floats = std::vector<float>;

// ---- Part 1: the model --------------------------------------------------------------------------
struct Config {
  std::size_t dim, hidden, layers, vocab, positions, bos;
  std::size_t heads, kv_heads, head_dim;  // kv_heads < heads: groups of heads share their keys and values
  float eps, rope_theta;
  bool tied;  // the embedding is also the output matrix
  std::vector<std::size_t> eos;  // any of them ends the story
};

struct Layer {  // its attention; swiglu has the rest
  Floats norm, query, key, value, output;
  Floats keys = {}, values = {};  // the cache: kv_heads * head_dim floats for each token so far
};

struct Model {
  Config config;
  Floats embedding, norm, head;  // head is empty if tied
  std::vector<Layer> layers;
  std::vector<swiglu::FeedForward> feed_forwards;  // one for each layer: norm and weights, packed for this processor
  Clock::duration feed_forward_time{};
};

float dot(const float* a, const float* b, std::size_t n) { return std::transform_reduce(a, a + n, b, 0.0F); }

/// W x. A matrix lies row after row, one row for each output.
Floats multiply(const Floats& w, const Floats& x) {
  Floats y(w.size() / x.size());
  for (std::size_t row = 0; row < y.size(); ++row) y[row] = dot(&w[row * x.size()], x.data(), x.size());
  return y;
}

Floats rms_norm(const Floats& x, const Floats& weight, float eps) {
  const float scale = 1.0F / std::sqrt(dot(x.data(), x.data(), x.size()) / static_cast<float>(x.size()) + eps);
  Floats y(x.size());
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = x[i] * scale * weight[i];
  return y;
}

/// Turns every head's pairs (i, i + half) by an angle that grows with the position, fastest for the first pair.
void rotate(Floats& heads, std::size_t head_dim, std::size_t position, float theta) {
  const std::size_t half = head_dim / 2;
  for (std::size_t i = 0; i < half; ++i) {
    const float frequency = std::pow(theta, -static_cast<float>(2 * i) / static_cast<float>(head_dim));
    const std::complex<float> turn = std::polar(1.0F, static_cast<float>(position) * frequency);
    for (std::size_t first = i; first < heads.size(); first += head_dim) {
      const std::complex<float> turned = turn * std::complex(heads[first], heads[first + half]);
      heads[first] = turned.real();
      heads[first + half] = turned.imag();
    }
  }
}

void softmax(Floats& x) {
  const float largest = *std::max_element(x.begin(), x.end());
  for (float& value : x) value = std::exp(value - largest);
  const float sum = std::accumulate(x.begin(), x.end(), 0.0F);
  for (float& value : x) value /= sum;
}

/// h += attention(norm(h)): the token looks back at those before it, whose keys and values the cache holds.
void attend(const Config& c, Layer& layer, std::size_t position, Floats& h) {
  const Floats n = rms_norm(h, layer.norm, c.eps);
  Floats query = multiply(layer.query, n);
  Floats key = multiply(layer.key, n);
  const Floats value = multiply(layer.value, n);
  rotate(query, c.head_dim, position, c.rope_theta);
  rotate(key, c.head_dim, position, c.rope_theta);
  layer.keys.insert(layer.keys.end(), key.begin(), key.end());
  layer.values.insert(layer.values.end(), value.begin(), value.end());

  const float scale = 1.0F / std::sqrt(static_cast<float>(c.head_dim));
  Floats seen(query.size());
  Floats weight(position + 1);
  for (std::size_t head = 0; head < c.heads; ++head) {
    const std::size_t mine = head * c.head_dim;
    const std::size_t shared = head / (c.heads / c.kv_heads) * c.head_dim;
    for (std::size_t t = 0; t <= position; ++t)
      weight[t] = dot(&query[mine], &layer.keys[t * key.size() + shared], c.head_dim) * scale;
    softmax(weight);
    for (std::size_t t = 0; t <= position; ++t)
      for (std::size_t i = 0; i < c.head_dim; ++i)
        seen[mine + i] += weight[t] * layer.values[t * value.size() + shared + i];
  }
  const Floats change = multiply(layer.output, seen);
  for (std::size_t i = 0; i < h.size(); ++i) h[i] += change[i];
}

/// The likeliest token after `token`, which is the position-th.
std::size_t next_token(Model& model, std::size_t token, std::size_t position, std::span<std::byte> workspace) {
  const Config& c = model.config;
  const float* embedded = &model.embedding[token * c.dim];
  Floats h(embedded, embedded + c.dim);
  for (std::size_t i = 0; i < c.layers; ++i) {
    attend(c, model.layers[i], position, h);
    const auto begin = Clock::now();
    const auto view = swiglu::view_f32(h.data(), 1, static_cast<std::int64_t>(c.dim));
    model.feed_forwards[i].block(view, view, workspace);  // norm, feed-forward and residual in one call, in place
    model.feed_forward_time += Clock::now() - begin;
  }
  const Floats logits = multiply(c.tied ? model.embedding : model.head, rms_norm(h, model.norm, c.eps));
  const auto best = std::max_element(logits.begin(), logits.end());
  if (!std::isfinite(*best)) throw std::runtime_error("the model gives infinities or NaN");
  return static_cast<std::size_t>(best - logits.begin());
}

// ---- Part 2: the files --------------------------------------------------------------------------
[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw std::runtime_error(path + ": " + why);
}

constexpr std::size_t kMostJson = 1U << 20, kMost = 1U << 24;  // bytes; anything counted: 64 bits hold a product of two

/// At most n bytes of a file, from `begin` on.
std::string read_bytes(const fs::path& path, std::size_t begin = 0, std::size_t n = SIZE_MAX) {
  if (!fs::is_regular_file(path)) refuse(path, "no such file");
  const std::size_t size = fs::file_size(path);
  std::string bytes(std::min(n, size - std::min(begin, size)), '\0');
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(begin)).read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file) refuse(path, "cannot be read");
  return bytes;
}

template <class T>
T number_at(const fs::path& path, std::string_view bytes, std::size_t begin) {
  if (bytes.size() < begin + sizeof(T)) refuse(path, "cut short");
  T value;
  std::memcpy(&value, bytes.data() + begin, sizeof value);
  return value;
}

/// A JSON text as a flat list of what it says: "eos_token_id/0" is 128001, and "eos_token_id" is [. Strings keep their
/// quotes and escapes; null is as good as missing. Numbers are read when they are asked for.
struct Json {
  fs::path path;
  std::string_view rest;
  std::map<std::string, std::string> values;

  Json(fs::path file, std::string_view text) : path(std::move(file)), rest(text) {
    if (text.size() > kMostJson) wrong();
    add("", token(), 0);
    if (rest.find_first_not_of(" \t\r\n") != rest.npos) wrong();
  }
  [[nodiscard]] std::string text(const std::string& name) const {
    const auto found = values.find(name);
    return found == values.end() || found->second == "null" ? "missing" : found->second;
  }
  [[nodiscard]] bool has(const std::string& name) const { return text(name) != "missing"; }
  void require(const std::string& name, const std::string& wanted) const {
    if (text(name) != wanted) refuse(path, name + " is " + text(name) + ", but this program needs " + wanted);
  }
  void allow(const std::string& name, const std::string& only) const { require(name, has(name) ? only : "missing"); }
  template <class T = std::size_t>
  [[nodiscard]] T number(const std::string& name, T least = 1, T most = kMost) const {
    const std::string digits = text(name);
    T value{};
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || *end != '\0' || !(value >= least && value <= most))
      require(name, "a number from " + std::to_string(least) + " to " + std::to_string(most));
    return value;
  }
  [[noreturn]] void wrong() const { refuse(path, "not the JSON of a Llama"); }
  /// One of {}[],: or a string or a word. None but the last } ends the text.
  std::string_view token() {
    rest.remove_prefix(std::min(rest.find_first_not_of(" \t\r\n"), rest.size()));
    std::size_t n = rest.find_first_of(" \t\r\n{}[],:\"");
    if (rest.starts_with('"'))
      for (n = 1; n < rest.size() && rest[n] != '"';) n += rest[n] == '\\' ? 2 : 1;
    if (n >= rest.size()) wrong();
    if (n == 0 || rest.front() == '"') ++n;
    const std::string_view found = rest.substr(0, n);
    rest.remove_prefix(n);
    return found;
  }
  void add(const std::string& name, std::string_view first, int depth) {
    if (depth > 4 || !values.emplace(name, first).second) wrong();  // deeper than needed, or twice the same name
    const bool word = first == "true" || first == "false" || first == "null";
    if (first.front() == '"' || word || first.find_first_not_of("+-.0123456789eE") == first.npos) return;
    if (first != "{" && first != "[") wrong();
    const std::string_view end = first == "{" ? "}" : "]";
    const std::string prefix = name.empty() ? "" : name + "/";
    std::string_view next = token();
    for (std::size_t i = 0; next != end; ++i, next = token()) {
      if (i != 0 && next != ",") wrong();
      if (i != 0) next = token();
      std::string key = std::to_string(i);
      if (first == "{") {
        key = next.substr(1, next.size() - 2);
        if (next.front() != '"' || key.size() > 128 || key.find_first_of("/\\") != key.npos || token() != ":") wrong();
        next = token();
      }
      add(prefix + key, next, depth + 1);
    }
  }
};

Config read_config(const fs::path& path) {
  const Json json(path, read_bytes(path));
  json.require("model_type", "\"llama\"");
  json.allow("hidden_act", "\"silu\"");
  for (const char* unsupported : {"attention_bias", "mlp_bias"}) json.allow(unsupported, "false");
  for (const char* unsupported : {"rope_scaling", "quantization_config"}) json.allow(unsupported, "null");
  json.allow("rope_parameters/rope_type", "\"default\"");
  Config c{};
  c.dim = json.number("hidden_size");
  c.hidden = json.number("intermediate_size");
  c.layers = json.number("num_hidden_layers");
  c.vocab = json.number("vocab_size");
  c.positions = json.number("max_position_embeddings");
  c.heads = json.number("num_attention_heads");
  c.kv_heads = json.has("num_key_value_heads") ? json.number("num_key_value_heads") : c.heads;
  if (c.dim % (2 * c.heads) != 0 || c.heads % c.kv_heads != 0)
    refuse(path, "hidden_size, num_attention_heads and num_key_value_heads do not divide each other");
  c.head_dim = c.dim / c.heads;
  json.allow("head_dim", std::to_string(c.head_dim));
  c.eps = json.number("rms_norm_eps", 0.0F, 1.0F);
  const std::string theta = json.has("rope_theta") ? "rope_theta" : "rope_parameters/rope_theta";
  c.rope_theta = json.has(theta) ? json.number(theta, 1.0F, 1e12F) : 10000.0F;
  c.tied = json.text("tie_word_embeddings") == "true";
  if (!c.tied) json.allow("tie_word_embeddings", "false");
  c.bos = json.number<std::size_t>("bos_token_id", 0, c.vocab - 1);
  std::string eos = json.text("eos_token_id") == "[" ? "eos_token_id/0" : "eos_token_id";  // a list, or one
  do c.eos.push_back(json.number<std::size_t>(eos, 0, c.vocab - 1));
  while (json.has(eos = "eos_token_id/" + std::to_string(c.eos.size())));
  return c;
}

/// A .safetensors file: an 8-byte length, so much JSON, then the numbers.
struct Weights {
  std::size_t begin;  // of the numbers
  Json header;
  std::size_t size, known_bytes = 0;
  std::set<std::string> known = {};
  bool reading = false;

  explicit Weights(const fs::path& path)
      : begin(8 + number_at<std::uint64_t>(path, read_bytes(path, 0, 8), 0)),
        header(path, read_bytes(path, 8, begin - 8)), size(fs::file_size(path) - begin) {
    if (begin < 8 || begin > fs::file_size(path)) refuse(path, "its header has an impossible length");
  }
  /// A tensor that must have these rows and columns (0 of a vector). It is read after check(), if it is ours.
  Floats get(std::string name, std::size_t rows, std::size_t cols = 0, bool ours = true) {
    name += ".weight";
    const bool bf16 = header.text(name + "/dtype") == "\"BF16\"";
    if (!bf16) header.require(name + "/dtype", "\"F32\"");
    header.require(name + "/shape/0", std::to_string(rows));
    header.require(name + "/shape/1", cols == 0 ? "missing" : std::to_string(cols));
    header.require(name + "/shape/2", "missing");
    const std::size_t count = rows * std::max<std::size_t>(cols, 1);
    const std::size_t bytes = count * (bf16 ? 2 : 4);
    const auto from = header.number<std::size_t>(name + "/data_offsets/0", 0, size - std::min(size, bytes));
    header.require(name + "/data_offsets/1", std::to_string(from + bytes));
    if (known.insert(name).second) known_bytes += bytes;
    if (!reading || !ours) return {};
    const std::string read = read_bytes(header.path, begin + from, bytes);
    Floats floats(count);
    for (std::size_t i = 0; i < count; ++i)  // bf16 is the upper half of a float
      floats[i] = bf16 ? std::bit_cast<float>(std::uint32_t{number_at<std::uint16_t>(header.path, read, 2 * i)} << 16U)
                       : number_at<float>(header.path, read, 4 * i);
    return floats;
  }
  /// After all tensors were asked for: there are no others (biases, say), and no other bytes.
  void check() {
    for (const auto& [name, text] : header.values)
      if (text == "{" && !name.empty() && name != "__metadata__" && !known.contains(name))
        refuse(header.path, "config.json's Llama has no " + name);
    if (known_bytes != size) refuse(header.path, "the tensors do not fill the file");
    reading = true;
  }
};

Model read_model(const fs::path& folder, const Config& c, swiglu::ThreadPool& pool) {
  Weights weights(folder / "model.safetensors");
  const std::size_t keys = c.kv_heads * c.head_dim;
  Model model{c, {}, {}, {}, {}, {}};
  for (const bool reading : {false, true}) {  // nothing large is read before everything was found to be right
    if (reading) weights.check();
    model.embedding = weights.get("model.embed_tokens", c.vocab, c.dim);
    model.norm = weights.get("model.norm", c.dim);
    if (!c.tied) model.head = weights.get("lm_head", c.vocab, c.dim);
    model.layers.clear();
    for (std::size_t i = 0; i < c.layers; ++i) {
      const std::string layer = "model.layers." + std::to_string(i);
      const std::string attention = layer + ".self_attn.";
      model.layers.push_back(
          {weights.get(layer + ".input_layernorm", c.dim), weights.get(attention + "q_proj", c.dim, c.dim),
           weights.get(attention + "k_proj", keys, c.dim), weights.get(attention + "v_proj", keys, c.dim),
           weights.get(attention + "o_proj", c.dim, c.dim)});
      weights.get(layer + ".post_attention_layernorm", c.dim, 0, false);  // these are swiglu's
      weights.get(layer + ".mlp.gate_proj", c.hidden, c.dim, false);
      weights.get(layer + ".mlp.up_proj", c.hidden, c.dim, false);
      weights.get(layer + ".mlp.down_proj", c.dim, c.hidden, false);
    }
  }
  const auto checkpoint = swiglu::Checkpoint::open(folder);  // swiglu checks and reads its part by itself
  for (std::size_t i = 0; i < c.layers; ++i)
    model.feed_forwards.emplace_back(checkpoint.layer(static_cast<std::int64_t>(i)), pool);
  return model;
}

/// The tokens' texts. The file: the longest length, then for each token a score, a length and so many bytes.
std::vector<std::string> read_tokenizer(const fs::path& path, std::size_t vocab) {
  const std::string bytes = read_bytes(path);
  const auto longest = number_at<std::int32_t>(path, bytes, 0);
  std::vector<std::string> tokens;
  for (std::size_t at = 4; at < bytes.size();) {
    const auto n = number_at<std::int32_t>(path, bytes, at + 4);
    at += 8;
    if (n < 0 || n > longest || static_cast<std::size_t>(n) > bytes.size() - at)
      refuse(path, "token " + std::to_string(tokens.size()) + " cannot have " + std::to_string(n) + " bytes");
    std::string text = bytes.substr(at, static_cast<std::size_t>(n));
    unsigned byte = 0;
    if (n == 6 && text.starts_with("<0x") && std::from_chars(&text[3], &text[5], byte, 16).ptr == &text[5])
      text.assign(1, static_cast<char>(byte));  // "<0x0A>" is one byte
    at += static_cast<std::size_t>(n);
    tokens.push_back(std::move(text));
  }
  if (tokens.size() != vocab)
    refuse(path, "not the tokenizer of a model that has " + std::to_string(vocab) + " tokens");
  return tokens;
}

// ---- Part 3: the story --------------------------------------------------------------------------
struct alignas(64) CacheLine {
  std::byte bytes[64];
};

void tell(const fs::path& folder, fs::path tokenizer) {
  const Config c = read_config(folder / "config.json");
  for (const char* name : {"tok512.bin", "tokenizer.bin", "../tok512.bin", "../tokenizer.bin"})
    if (tokenizer.empty() && fs::exists(folder / name)) tokenizer = folder / name;
  const auto texts = tokenizer.empty() ? std::vector<std::string>() : read_tokenizer(tokenizer, c.vocab);
  swiglu::ThreadPool pool;
  Model model = read_model(folder, c, pool);
  std::size_t bytes = 0;
  for (const auto& layer : model.feed_forwards) bytes = std::max(bytes, layer.workspace_bytes(1));
  std::vector<CacheLine> workspace((bytes + 63) / 64);
  std::cerr << "tokenizer: " << (texts.empty() ? "none, so token ids" : tokenizer.string()) << "\n";
  const auto begin = Clock::now();
  std::size_t told = 0;
  for (std::size_t token = c.bos; told < std::min<std::size_t>(c.positions, 256); ++told) {
    token = next_token(model, token, told, std::as_writable_bytes(std::span(workspace)));
    if (token == c.bos || std::find(c.eos.begin(), c.eos.end(), token) != c.eos.end()) break;
    std::string text = texts.empty() ? std::to_string(token) + " " : texts[token];
    if (told == 0 && text.starts_with(' ')) text.erase(0, 1);
    std::cout << text << std::flush;
  }
  if (!(std::cout << "\n" << std::flush)) refuse("stdout", "cannot be written");
  const std::chrono::duration<double> all = Clock::now() - begin;
  std::cerr << told << " tokens, " << std::lround(static_cast<double>(told) / all.count()) << " tokens/s, "
            << std::lround(100 * (model.feed_forward_time / all)) << " % of the time in the feed-forward\n";
}

}  // namespace

int main(int argc, char** argv) try {
  if ((argc != 2 && argc != 3) || *argv[1] == '-') throw std::runtime_error("usage: story MODEL_FOLDER [TOKENIZER]");
  tell(argv[1], argc == 3 ? argv[2] : "");
} catch (const std::exception& error) {  // swiglu's own errors too
  std::string text = std::string(error.what()).substr(0, 400);
  for (char& c : text)  // some of it may be a file's bytes
    if (static_cast<unsigned char>(c) < ' ' || c == 127) c = '?';
  std::cerr << "story: " << text << "\n";
  return 1;
}
