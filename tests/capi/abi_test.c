/* The C ABI from C11: the header compiles as such, the answer is the formula's, errors are statuses with a text,
 * nothing is kept by what was freed. Prints one line and ends with 0, or the first fault and 1. */
#include <swiglu/swiglu.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 5, HIDDEN = 7, TOKENS = 3 };

#define EXPECT(truth)                                                               \
  do {                                                                              \
    if (!(truth)) {                                                                 \
      fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #truth, swiglu_last_error()); \
      exit(1);                                                                      \
    }                                                                               \
  } while (0)

static float gate[HIDDEN * DIM], up[HIDDEN * DIM], down[DIM * HIDDEN], norm[DIM], h[TOKENS * DIM];

/* out = h + W2 (silu(W1 n) * (W3 n)), in double. */
static void formula(const float* token, double* out) {
  double squares = 0, n[DIM], z[HIDDEN];
  for (int i = 0; i < DIM; ++i) squares += (double)token[i] * (double)token[i];
  for (int i = 0; i < DIM; ++i) n[i] = (double)token[i] / sqrt(squares / (double)DIM + 1e-5) * (double)norm[i];
  for (int j = 0; j < HIDDEN; ++j) {
    double g = 0, u = 0;
    for (int i = 0; i < DIM; ++i) g += (double)gate[j * DIM + i] * n[i], u += (double)up[j * DIM + i] * n[i];
    z[j] = g / (1 + exp(-g)) * u;
  }
  for (int i = 0; i < DIM; ++i) {
    out[i] = (double)token[i];
    for (int j = 0; j < HIDDEN; ++j) out[i] += (double)down[i * HIDDEN + j] * z[j];
  }
}

static void run_in_reverse(void* ctx, int64_t n, void (*task)(void*, int64_t), void* arg) {
  ++*(int*)ctx;
  for (int64_t i = n; i-- > 0;) task(arg, i);
}

static swiglu_view dense(const void* data, int64_t rows, int64_t cols) {
  swiglu_view view = {data, SWIGLU_F32, rows, cols, cols};
  return view;
}

static swiglu_weights all_weights(void) {
  swiglu_weights weights = {.struct_bytes = sizeof weights, .eps = 1e-5};
  weights.gate = dense(gate, HIDDEN, DIM), weights.up = dense(up, HIDDEN, DIM);
  weights.down = dense(down, DIM, HIDDEN), weights.norm = dense(norm, 1, DIM);
  return weights;
}

static void gives_the_formula(void) {
  swiglu_pool* pool = NULL;
  EXPECT(swiglu_pool_create(2, &pool) == SWIGLU_OK && swiglu_pool_threads(pool) == 2);
  swiglu_weights weights = all_weights();
  swiglu_layer_options options = {.struct_bytes = sizeof options, .pool = pool};
  swiglu_layer *layer = NULL, *serial = NULL, *reversed = NULL;
  EXPECT(swiglu_layer_create(&weights, &options, &layer) == SWIGLU_OK && layer != NULL);
  EXPECT(swiglu_layer_create(&weights, NULL, &serial) == SWIGLU_OK);
  int calls = 0;
  swiglu_runner runner = {run_in_reverse, &calls};
  swiglu_layer_options with_runner = {.struct_bytes = sizeof options, .runner = &runner};
  EXPECT(swiglu_layer_create(&weights, &with_runner, &reversed) == SWIGLU_OK && calls > 0);
  swiglu_pool_free(pool); /* the layer keeps it */

  swiglu_layer_info info = {.struct_bytes = sizeof info};
  EXPECT(swiglu_layer_get_info(layer, &info) == SWIGLU_OK);
  EXPECT(info.dim == DIM && info.hidden == HIDDEN && info.has_norm == 1 && info.compute == SWIGLU_COMPUTE_F32);
  EXPECT(info.isa > SWIGLU_ISA_AUTOMATIC && swiglu_isa_available(info.isa) == 1 && info.eps == 1e-5);
  EXPECT(strcmp(info.gate_up_storage, "plain f32") == 0);

  float out[TOKENS * DIM], other[TOKENS * DIM];
  const swiglu_view in = dense(h, TOKENS, DIM);
  swiglu_mutable_view to = {out, SWIGLU_F32, TOKENS, DIM, 0};
  EXPECT(swiglu_layer_block(layer, &in, &to, NULL, 0) == SWIGLU_OK);
  for (int t = 0; t < TOKENS; ++t) {
    double expected[DIM];
    formula(h + t * DIM, expected);
    /* Some 40 operations, each with a relative error of 2^-24, on terms of a sum of magnitudes below 8. */
    for (int i = 0; i < DIM; ++i) EXPECT(fabs((double)out[t * DIM + i] - expected[i]) < 40 * 8 * ldexp(1, -24));
  }
  to.data = other;
  const int64_t bytes = swiglu_layer_workspace_bytes(layer, TOKENS);
  void* workspace = aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64);
  swiglu_layer* all[3] = {layer, serial, reversed};
  for (int i = 0; i < 3; ++i) {
    memset(other, 0, sizeof other);
    EXPECT(swiglu_layer_block(all[i], &in, &to, workspace, bytes) == SWIGLU_OK);
    EXPECT(memcmp(out, other, sizeof out) == 0);
  }
  EXPECT(swiglu_layer_block(layer, &in, &to, workspace, bytes - 64) == SWIGLU_USAGE);
  free(workspace);
  for (int i = 0; i < 3; ++i) swiglu_layer_free(all[i]);
}

static void answers_faults_with_a_status(void) {
  swiglu_checkpoint* model = (swiglu_checkpoint*)(void*)h;
  EXPECT(swiglu_checkpoint_open("no/such\nmodel", NULL, &model) == SWIGLU_NOT_FOUND && model == NULL);
  EXPECT(strstr(swiglu_last_error(), "no/such") != NULL && strchr(swiglu_last_error(), '\n') == NULL);
  EXPECT(swiglu_checkpoint_open(NULL, NULL, &model) == SWIGLU_USAGE);
  EXPECT(swiglu_checkpoint_open("x", NULL, NULL) == SWIGLU_USAGE);
  swiglu_open_options open = {.struct_bytes = 3};
  EXPECT(swiglu_checkpoint_open("x", &open, &model) == SWIGLU_USAGE);

  swiglu_weights weights = all_weights();
  swiglu_layer* layer = NULL;
  weights.down.rows = 4;
  EXPECT(swiglu_layer_create(&weights, NULL, &layer) == SWIGLU_SHAPE && layer == NULL);
  weights = all_weights(), weights.norm.cols = 4;
  EXPECT(swiglu_layer_create(&weights, NULL, &layer) == SWIGLU_SHAPE);
  weights = all_weights(), weights.eps = 0;
  EXPECT(swiglu_layer_create(&weights, NULL, &layer) == SWIGLU_USAGE && strstr(swiglu_last_error(), "eps") != NULL);
  weights = all_weights(), weights.up.dtype = 9;
  EXPECT(swiglu_layer_create(&weights, NULL, &layer) == SWIGLU_USAGE);
  weights = all_weights(), weights.gate.data = NULL;
  EXPECT(swiglu_layer_create(&weights, NULL, &layer) == SWIGLU_USAGE);
  weights = all_weights(), weights.gate.rows = INT64_MAX / 4;
  EXPECT(swiglu_layer_create(&weights, NULL, &layer) != SWIGLU_OK);
  weights = all_weights(), weights.gate.stride = -1;
  EXPECT(swiglu_layer_create(&weights, NULL, &layer) == SWIGLU_USAGE);
  weights = all_weights();
  swiglu_layer_options options = {.struct_bytes = sizeof options, .compute = 7};
  EXPECT(swiglu_layer_create(&weights, &options, &layer) == SWIGLU_USAGE);
  EXPECT(swiglu_layer_create(NULL, NULL, &layer) == SWIGLU_USAGE);
  EXPECT(swiglu_layer_create(&weights, NULL, NULL) == SWIGLU_USAGE);
  EXPECT(swiglu_layer_load(NULL, 0, -1, NULL, &layer) == SWIGLU_USAGE);

  /* A newer program's struct: fine while what we do not know is zero. */
  struct {
    swiglu_layer_options known;
    int64_t unknown;
  } newer = {.known = {.struct_bytes = sizeof newer}, .unknown = 0};
  EXPECT(swiglu_layer_create(&weights, &newer.known, &layer) == SWIGLU_OK);
  swiglu_layer_free(layer);
  newer.unknown = 1;
  EXPECT(swiglu_layer_create(&weights, &newer.known, &layer) == SWIGLU_UNSUPPORTED && layer == NULL);

  /* Without a norm there is forward() only; hostile shapes of a call are refused before anything is written. */
  weights.norm.data = NULL;
  EXPECT(swiglu_layer_create(&weights, NULL, &layer) == SWIGLU_OK);
  float out[TOKENS * DIM] = {0};
  swiglu_view in = dense(h, TOKENS, DIM);
  swiglu_mutable_view to = {out, SWIGLU_F32, TOKENS, DIM, DIM};
  EXPECT(swiglu_layer_block(layer, &in, &to, NULL, 0) == SWIGLU_USAGE);
  EXPECT(swiglu_layer_forward(layer, &in, &to, NULL, 0) == SWIGLU_OK);
  in.stride = INT64_MAX / 2, to.stride = INT64_MAX / 2;
  EXPECT(swiglu_layer_forward(layer, &in, &to, NULL, 0) == SWIGLU_USAGE);
  in = dense(h, TOKENS, DIM), to.stride = DIM, to.rows = TOKENS - 1;
  EXPECT(swiglu_layer_forward(layer, &in, &to, NULL, 0) == SWIGLU_SHAPE);
  in.rows = -1, to.rows = -1;
  EXPECT(swiglu_layer_forward(layer, &in, &to, NULL, 0) == SWIGLU_USAGE);
  in.rows = 0, to.rows = 0, in.data = NULL, to.data = NULL;
  EXPECT(swiglu_layer_forward(layer, &in, &to, NULL, 0) == SWIGLU_OK);
  EXPECT(swiglu_layer_forward(layer, NULL, &to, NULL, 0) == SWIGLU_USAGE);
  EXPECT(swiglu_layer_forward(NULL, &in, &to, NULL, 0) == SWIGLU_USAGE);
  EXPECT(swiglu_layer_workspace_bytes(layer, 0) == 0 && swiglu_layer_workspace_bytes(NULL, 4) == 0);
  swiglu_layer_free(layer);
  swiglu_layer_free(NULL), swiglu_checkpoint_free(NULL), swiglu_pool_free(NULL);

  swiglu_pool* pool = NULL;
  EXPECT(swiglu_pool_create(-1, &pool) == SWIGLU_USAGE && pool == NULL);
  EXPECT(swiglu_isa_available(99) == 0 && strcmp(swiglu_isa_name(99), "unknown") == 0);
  EXPECT(strcmp(swiglu_status_name(SWIGLU_SHAPE), "shape") == 0 && strcmp(swiglu_status_name(-1), "unknown") == 0);
  int64_t width = 0;
  EXPECT(swiglu_ffn_width(4096, 1024, 1.3, &width) == SWIGLU_OK && width == 14336);
  EXPECT(swiglu_ffn_width(0, 1024, 0, &width) == SWIGLU_USAGE && width == 14336);
}

/* What a folder holds, if the caller names one. */
static void opens(const char* path) {
  swiglu_checkpoint* model = NULL;
  EXPECT(swiglu_checkpoint_open(path, NULL, &model) == SWIGLU_OK);
  swiglu_checkpoint_info info = {.struct_bytes = sizeof info};
  EXPECT(swiglu_checkpoint_get_info(model, &info) == SWIGLU_OK);
  EXPECT(strcmp(info.format, "huggingface") == 0 && info.layers > 0 && info.dim > 0 && info.bytes_read > 0);
  EXPECT(swiglu_checkpoint_layer_number(model, info.layers - 1) == info.layers - 1);
  EXPECT(swiglu_checkpoint_layer_number(model, info.layers) == -1);
  EXPECT(swiglu_checkpoint_note(model, info.notes) == NULL && swiglu_checkpoint_problem(model, 0) == NULL);
  int64_t matrices = 0;
  for (int64_t i = 0; i < info.tensors; ++i) {
    swiglu_tensor_info tensor = {.struct_bytes = sizeof tensor};
    EXPECT(swiglu_checkpoint_tensor(model, i, &tensor) == SWIGLU_OK && tensor.dimensions > 0 && tensor.shape[0] > 0);
    matrices += tensor.dimensions == 2;
  }
  EXPECT(matrices == 3 * info.layers);
  swiglu_tensor_info none = {.struct_bytes = sizeof none};
  EXPECT(swiglu_checkpoint_tensor(model, info.tensors, &none) == SWIGLU_USAGE);
  swiglu_layer* layer = NULL;
  EXPECT(swiglu_layer_load(model, info.layers, -1, NULL, &layer) == SWIGLU_USAGE);
  EXPECT(swiglu_layer_load(model, 0, 3, NULL, &layer) == SWIGLU_USAGE);
  EXPECT(swiglu_layer_load(model, 0, -1, NULL, &layer) == SWIGLU_OK);
  swiglu_checkpoint_free(model);
  float* rows = calloc((size_t)info.dim, sizeof *rows);
  swiglu_view in = dense(rows, 1, info.dim);
  swiglu_mutable_view to = {rows, SWIGLU_F32, 1, info.dim, info.dim};
  EXPECT(swiglu_layer_block(layer, &in, &to, NULL, 0) == SWIGLU_OK);
  for (int64_t i = 0; i < info.dim; ++i) EXPECT(rows[i] == 0); /* a token of zeros stays one */
  free(rows);
  swiglu_layer_free(layer);
}

/* Resident memory in pages. */
static long resident(void) {
  long size = 0, pages = 0;
  FILE* file = fopen("/proc/self/statm", "r");
  EXPECT(file != NULL && fscanf(file, "%ld %ld", &size, &pages) == 2);
  fclose(file);
  return pages;
}

/* Sanitizers keep freed memory for a while, so resident memory says nothing there; what is lost they report themselves.
 */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { CYCLES = 1000, MOST_PAGES = INT32_MAX };
#else
enum { CYCLES = 10000, MOST_PAGES = 1000 }; /* a page a cycle, the least that a layer takes, would be 9000 */
#endif

static void keeps_nothing(void) {
  swiglu_weights weights = all_weights();
  long before = 0;
  for (int i = 0; i < CYCLES; ++i) {
    swiglu_layer* layer = NULL;
    EXPECT(swiglu_layer_create(&weights, NULL, &layer) == SWIGLU_OK);
    swiglu_layer_free(layer);
    if (i == 999) before = resident();
  }
  EXPECT(resident() - before < MOST_PAGES);
}

int main(int argc, char** argv) {
  for (int i = 0; i < HIDDEN * DIM; ++i) gate[i] = (float)(i % 11 - 5) / 8;
  for (int i = 0; i < HIDDEN * DIM; ++i) up[i] = (float)(i % 7 - 3) / 8;
  for (int i = 0; i < HIDDEN * DIM; ++i) down[i] = (float)(i % 5 - 2) / 8;
  for (int i = 0; i < DIM; ++i) norm[i] = 1 + (float)i / 8;
  for (int i = 0; i < TOKENS * DIM; ++i) h[i] = (float)(i % 9 - 4) / 2;
  gives_the_formula();
  answers_faults_with_a_status();
  for (int i = 1; i < argc; ++i) opens(argv[i]);
  keeps_nothing();
  printf("swiglu %s from C: formula, faults, %d models, %d layers made and freed\n", swiglu_version(), argc - 1,
         CYCLES);
  return 0;
}
