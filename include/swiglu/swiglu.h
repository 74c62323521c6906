/* The C ABI of swiglu: the Llama 3 feed-forward sublayer on CPUs, for C and for whatever can call C.
 *
 *     out = h + W2 · ( silu(W1 · n) ⊙ (W3 · n) ),   n = RMSNorm(h) = h / sqrt(mean(h²) + eps) ⊙ g
 *
 * gate = W1, up = W3 (both [hidden, dim]), down = W2 ([dim, hidden]), g = the norm's weight ([dim]).
 * docs/design.md states the numeric contract: for given weights and arithmetic a token's output has the same bits
 * whatever the batch, the position, the strides, the number of threads and the processor.
 *
 * Rules for everything here, unless a function says otherwise:
 * - Sizes and strides count elements and are int64_t; matrices are row-major; pointers need no alignment.
 * - A function that can fail returns a swiglu_status. When that is not SWIGLU_OK, swiglu_last_error() says why in one
 *   line, and no output parameter was written, but for handles, which are set to NULL.
 * - Handles (pointers to incomplete structs) are made by ..._open, ..._load and ..._create and given back by ..._free,
 *   which takes NULL, too. Text that a function returns belongs to the handle, or is constant.
 * - Any number of threads may use one handle at once; only ..._free must come last.
 * - Structs that have a member struct_bytes, also those to be filled, want it set to their size first. In what the
 *   caller tells, all else zero means the defaults:
 *       swiglu_layer_options options = {.struct_bytes = sizeof options, .compute = SWIGLU_COMPUTE_BF16};
 *   They may grow in later versions; a library takes the structs of all programs that are not newer than itself.
 * - The library prints nothing, installs no signal handler and leaves the floating-point mode as it was.
 */
#ifndef SWIGLU_SWIGLU_H
#define SWIGLU_SWIGLU_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* ------------------------------------------------------------------------------------------------------------------
 * Versions and errors */

/** "MAJOR.MINOR.PATCH" of the library that runs; it may be newer than this header. */
const char* swiglu_version(void);

/** Why something failed. The values are fixed; more may be added. */
typedef int32_t swiglu_status;
enum {
  SWIGLU_OK = 0,
  SWIGLU_USAGE = 1,         /**< arguments that do not fit (a layer out of range, an ISA this machine lacks) */
  SWIGLU_NOT_FOUND = 2,     /**< a file, tensor or layer that should exist does not */
  SWIGLU_IO = 3,            /**< the operating system refused a read */
  SWIGLU_FORMAT = 4,        /**< bytes that break the rules of their file format */
  SWIGLU_SHAPE = 5,         /**< shapes or widths that contradict each other */
  SWIGLU_UNSUPPORTED = 6,   /**< well-formed, but not something this library computes */
  SWIGLU_NO_MEMORY = 7,     /**< an allocation failed */
  SWIGLU_COMMUNICATION = 8, /**< between processes; nothing in this header does that */
  SWIGLU_INTERNAL = 9       /**< a fault of this library */
};
/** "usage", "not_found", …; "unknown" for a value that this version does not have. Constant. */
const char* swiglu_status_name(swiglu_status status);

/** What the last function that failed on this thread had to say: one line that names file, tensor, expected and found,
 * with control characters out of files escaped. "" before the first failure; never NULL. Valid until this thread's
 * next failure or end. */
const char* swiglu_last_error(void);

/* ------------------------------------------------------------------------------------------------------------------
 * Elements and matrices */

/** Element types. bf16 is the upper half of an IEEE float; f16 is IEEE half. */
typedef int32_t swiglu_dtype;
enum { SWIGLU_F32 = 0, SWIGLU_BF16 = 1, SWIGLU_F16 = 2, SWIGLU_F64 = 3 };

/** A matrix in the caller's memory: row r, column c is element r * stride + c of `data`. stride >= cols; 0 stands for
 * cols. `data` may be NULL where rows or cols is 0. */
typedef struct swiglu_view {
  const void* data;
  swiglu_dtype dtype;
  int64_t rows;
  int64_t cols;
  int64_t stride;
} swiglu_view;

/** The same, to be written to. */
typedef struct swiglu_mutable_view {
  void* data;
  swiglu_dtype dtype;
  int64_t rows;
  int64_t cols;
  int64_t stride;
} swiglu_mutable_view;

/* ------------------------------------------------------------------------------------------------------------------
 * Threads */

/** How to run `n` independent tasks: task(arg, i) for every i in [0, n), in any order, on any threads, returning when
 * all are done. Tasks never wait for each other; one needs up to 320 KiB of stack. Fastest when neighbours in i are
 * run by one thread, in order. */
typedef struct swiglu_runner {
  void (*run)(void* ctx, int64_t n, void (*task)(void* arg, int64_t i), void* arg);
  void* ctx;
} swiglu_runner;

/** A fork-join pool, to be shared by all layers of a process. The calling thread works, too. A call that comes while
 * another is at work runs on its own thread rather than queueing. It survives fork(). */
typedef struct swiglu_pool swiglu_pool;
/** `threads` 0: SWIGLU_THREADS of the environment if set, else the CPUs that this process may use. */
swiglu_status swiglu_pool_create(int32_t threads, swiglu_pool** pool);
/** Layers that were made with it keep it alive. */
void swiglu_pool_free(swiglu_pool* pool);
/** 0 for NULL. */
int32_t swiglu_pool_threads(const swiglu_pool* pool);

/* ------------------------------------------------------------------------------------------------------------------
 * Checkpoints */

/** An opened checkpoint: headers were read, weights were not. Its files stay open. */
typedef struct swiglu_checkpoint swiglu_checkpoint;

typedef struct swiglu_open_options {
  int64_t struct_bytes;
  double eps;               /**< overrides the file's eps; 0: as in the file (1e-5 where a bare file has none) */
  int64_t hidden;           /**< confirms a width that the metadata contradicts; 0: none */
  int32_t map;              /**< 1: a packed file's weights stay in its pages, shared by the processes that map it */
  int32_t collect_problems; /**< 1: inconsistencies are collected for inspection where something is readable */
} swiglu_open_options;

/** `path`: a Hugging Face or Meta folder, or one .safetensors, .gguf, .pth, .bin or packed file; the bytes decide what
 * it is. `options` may be NULL. Reads headers only. */
swiglu_status swiglu_checkpoint_open(const char* path, const swiglu_open_options* options,
                                     swiglu_checkpoint** checkpoint);
/** Layers that were loaded from it do not need it. */
void swiglu_checkpoint_free(swiglu_checkpoint* checkpoint);

typedef struct swiglu_checkpoint_info {
  int64_t struct_bytes;
  const char* format; /**< "huggingface", "safetensors", "meta", "gguf" or "packed" */
  const char* family; /**< "llama", "mistral", …; "" if unknown */
  int64_t layers;     /**< with a complete feed-forward */
  int64_t dim;
  int64_t hidden;
  double eps;
  int64_t experts;    /**< of each layer of a mixture of experts, else 0 */
  int64_t shards;     /**< weight files */
  int64_t size_bytes; /**< of those files */
  int64_t bytes_read; /**< from the checkpoint's files so far */
  int64_t tensors;    /**< for swiglu_checkpoint_tensor() */
  int64_t notes;      /**< for swiglu_checkpoint_note() */
  int64_t problems;   /**< for swiglu_checkpoint_problem() */
} swiglu_checkpoint_info;
/** Fills the first info->struct_bytes bytes. */
swiglu_status swiglu_checkpoint_get_info(const swiglu_checkpoint* checkpoint, swiglu_checkpoint_info* info);

/** The number of the i-th layer: i, but for a packed file of some layers only. -1 where there is none. */
int64_t swiglu_checkpoint_layer_number(const swiglu_checkpoint* checkpoint, int64_t i);
/** What opening noticed; NULL where there is none. */
const char* swiglu_checkpoint_note(const swiglu_checkpoint* checkpoint, int64_t i);
/** What is inconsistent (with collect_problems only); NULL where there is none. */
const char* swiglu_checkpoint_problem(const swiglu_checkpoint* checkpoint, int64_t i);

/** One feed-forward matrix or norm vector as stored. */
typedef struct swiglu_tensor_info {
  int64_t struct_bytes;
  const char* name;     /**< as in the file */
  const char* role;     /**< "gate", "up", "down", "norm", or "gate and up" in one tensor */
  const char* dtype;    /**< the file's own name for it */
  int64_t layer;
  int64_t expert;       /**< whose it is, where experts have tensors of their own; else -1 */
  const int64_t* shape; /**< `dimensions` of them, merged over shards; owned by the checkpoint */
  int64_t dimensions;
} swiglu_tensor_info;
/** Fills the first info->struct_bytes bytes. `i` from 0 to the info's `tensors`. */
swiglu_status swiglu_checkpoint_tensor(const swiglu_checkpoint* checkpoint, int64_t i, swiglu_tensor_info* info);

/* ------------------------------------------------------------------------------------------------------------------
 * Layers */

/** A packed sublayer, immutable: any number of threads may call it at once, each with its own workspace. */
typedef struct swiglu_layer swiglu_layer;

/** What the arithmetic reads; sums are fp32 in both. f32: fp32 activations, weights as stored (f64 narrowed once).
 * bf16: activations and weights bf16. automatic: bf16 if gate, up and down are all bf16, else f32. */
typedef int32_t swiglu_compute;
enum { SWIGLU_COMPUTE_AUTOMATIC = 0, SWIGLU_COMPUTE_F32 = 1, SWIGLU_COMPUTE_BF16 = 2 };
/** How packed bf16 weights lie in memory: 16 bits each, or about 12 without loss. All give the same bits. */
typedef int32_t swiglu_storage;
enum { SWIGLU_STORAGE_AUTOMATIC = 0, SWIGLU_STORAGE_PLAIN = 1, SWIGLU_STORAGE_COMPACT = 2 };
/** Instruction sets, slowest first; all give the same bits. automatic: SWIGLU_ISA of the environment if set, else the
 * fastest here. */
typedef int32_t swiglu_isa;
enum {
  SWIGLU_ISA_AUTOMATIC = 0,
  SWIGLU_ISA_SCALAR = 1,
  SWIGLU_ISA_AVX2 = 2,
  SWIGLU_ISA_AVX512 = 3,
  SWIGLU_ISA_AVX512BF16 = 4
};

typedef struct swiglu_layer_options {
  int64_t struct_bytes;
  swiglu_compute compute;
  swiglu_storage storage;
  swiglu_isa isa;
  int32_t reserved;            /**< 0 */
  swiglu_pool* pool;           /**< runs packing and calls; or */
  const swiglu_runner* runner; /**< the caller's own threads: copied, its ctx must outlive the layer. Without either,
                                  packing and calls run on the calling thread. */
  /** Called from packing threads with (bytes packed so far, bytes in all); must be quick. May be NULL. */
  void (*progress)(void* ctx, int64_t done, int64_t total);
  void* progress_ctx;
} swiglu_layer_options;

/** Reads and packs layer number `layer`: `expert` of a mixture of experts, else -1. `options` may be NULL. Peak memory
 * is the packed size and small buffers; time is about that of reading the weights. */
swiglu_status swiglu_layer_load(const swiglu_checkpoint* checkpoint, int64_t layer, int64_t expert,
                                const swiglu_layer_options* options, swiglu_layer** out);

/** Weights in the caller's memory, copied while packing: the memory may go once the call returns. */
typedef struct swiglu_weights {
  int64_t struct_bytes;
  swiglu_view gate; /**< [hidden, dim] */
  swiglu_view up;   /**< [hidden, dim] */
  swiglu_view down; /**< [dim, hidden] */
  swiglu_view norm; /**< [1, dim]; with data NULL the layer has forward() only */
  double eps;       /**< of the norm: the model's, above 0. Without a norm it does not matter */
} swiglu_weights;
swiglu_status swiglu_layer_create(const swiglu_weights* weights, const swiglu_layer_options* options,
                                  swiglu_layer** out);
void swiglu_layer_free(swiglu_layer* layer);

typedef struct swiglu_layer_info {
  int64_t struct_bytes;
  int64_t dim;
  int64_t hidden;
  double eps;
  swiglu_compute compute;      /**< f32 or bf16 */
  swiglu_isa isa;              /**< never automatic */
  const char* gate_up_storage; /**< "plain f32", "plain bf16", "plain f16" or "compact bf16" */
  const char* down_storage;
  int64_t packed_bytes; /**< of weights in memory */
  double bits_per_weight;
  int32_t has_norm; /**< 0: swiglu_layer_block() fails */
  int32_t reserved;
} swiglu_layer_info;
/** Fills the first info->struct_bytes bytes. */
swiglu_status swiglu_layer_get_info(const swiglu_layer* layer, swiglu_layer_info* info);

/** Bytes of workspace that a call with this many tokens needs. Bounded, since tokens run in blocks of at most 256; 0
 * for no tokens, and for NULL. */
int64_t swiglu_layer_workspace_bytes(const swiglu_layer* layer, int64_t tokens);

/** out = h + FFN(norm(h)); both [tokens, dim], of any two element types. `out` may be `h` itself (same data, type and
 * stride) but may not overlap it otherwise, not even by their rows taking turns. 0 tokens are a call that touches
 * nothing. `workspace`: 64-byte aligned memory apart from both, and then nothing is allocated; or NULL and 0, and the
 * call allocates its own. Fails on arguments that do not fit, before anything is written. */
swiglu_status swiglu_layer_block(const swiglu_layer* layer, const swiglu_view* h, const swiglu_mutable_view* out,
                                 void* workspace, int64_t workspace_bytes);

/** y = W2 · (silu(W1 · x) ⊙ (W3 · x)), without norm and residual. The same rules. */
swiglu_status swiglu_layer_forward(const swiglu_layer* layer, const swiglu_view* x, const swiglu_mutable_view* y,
                                   void* workspace, int64_t workspace_bytes);

/* ------------------------------------------------------------------------------------------------------------------
 * This machine, and the width recipe */

/** 1 if this machine can run `isa`, else 0. */
int32_t swiglu_isa_available(swiglu_isa isa);
/** "automatic", "scalar", "avx2", …; "unknown" for a value that this version does not have. Constant. */
const char* swiglu_isa_name(swiglu_isa isa);

/** The hidden width that Meta's code gives (llama_models FeedForward): int(2 * (4 * dim) / 3), times the multiplier and
 * truncated again, rounded up to a multiple of `multiple_of`. `multiplier` 0: none. */
swiglu_status swiglu_ffn_width(int64_t dim, int64_t multiple_of, double multiplier, int64_t* width);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif /* SWIGLU_SWIGLU_H */
