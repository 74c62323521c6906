/* One feed-forward sublayer on four tokens, from C.
 *
 *     block_c          a small layer of made-up weights, in memory
 *     block_c MODEL    layer 0 of a checkpoint: a Hugging Face, Meta or GGUF model, or a packed file
 */
#include <swiglu/swiglu.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 4, DIM = 64, HIDDEN = 172 };

static int failed(const char* what) {
  fprintf(stderr, "block_c: %s: %s\n", what, swiglu_last_error());
  return 1;
}

/* Weights of one's own: pointers and shapes. They are copied, so they may go when the call returns. */
static swiglu_status made_up_layer(const swiglu_layer_options* options, swiglu_layer** layer) {
  static float matrix[DIM * HIDDEN], norm[DIM];
  for (int i = 0; i < DIM * HIDDEN; ++i) matrix[i] = (float)(i % 13 - 6) / 64;
  for (int i = 0; i < DIM; ++i) norm[i] = 1;
  swiglu_weights weights = {.struct_bytes = sizeof weights, .eps = 1e-5};
  weights.gate = (swiglu_view){.data = matrix, .dtype = SWIGLU_F32, .rows = HIDDEN, .cols = DIM};
  weights.up = weights.gate;
  weights.down = (swiglu_view){.data = matrix, .dtype = SWIGLU_F32, .rows = DIM, .cols = HIDDEN};
  weights.norm = (swiglu_view){.data = norm, .dtype = SWIGLU_F32, .rows = 1, .cols = DIM};
  return swiglu_layer_create(&weights, options, layer);
}

static swiglu_status first_layer_of(const char* path, const swiglu_layer_options* options, swiglu_layer** layer) {
  swiglu_checkpoint* model = NULL;
  swiglu_status status = swiglu_checkpoint_open(path, NULL, &model);
  if (status == SWIGLU_OK) {
    status = swiglu_layer_load(model, swiglu_checkpoint_layer_number(model, 0), -1, options, layer);
  }
  swiglu_checkpoint_free(model); /* the layer does not need it */
  return status;
}

int main(int argc, char** argv) {
  swiglu_pool* pool = NULL; /* one for all layers of a model */
  if (swiglu_pool_create(0, &pool) != SWIGLU_OK) return failed("threads");
  swiglu_layer_options options = {.struct_bytes = sizeof options, .pool = pool};
  swiglu_layer* layer = NULL;
  if ((argc > 1 ? first_layer_of(argv[1], &options, &layer) : made_up_layer(&options, &layer)) != SWIGLU_OK) {
    return failed("the layer");
  }
  swiglu_layer_info info = {.struct_bytes = sizeof info};
  if (swiglu_layer_get_info(layer, &info) != SWIGLU_OK) return failed("its description");

  float* h = malloc((size_t)(TOKENS * info.dim) * sizeof *h);
  /* With a workspace of one's own, a call allocates nothing. NULL and 0 would do, too. */
  const size_t bytes = ((size_t)swiglu_layer_workspace_bytes(layer, TOKENS) + 63) / 64 * 64;
  void* workspace = aligned_alloc(64, bytes);
  if (h == NULL || workspace == NULL) return 1;
  for (int64_t i = 0; i < TOKENS * info.dim; ++i) h[i] = (float)(i % 7) - 3;

  const swiglu_view in = {.data = h, .dtype = SWIGLU_F32, .rows = TOKENS, .cols = info.dim};
  const swiglu_mutable_view out = {.data = h, .dtype = SWIGLU_F32, .rows = TOKENS, .cols = info.dim}; /* in place */
  if (swiglu_layer_block(layer, &in, &out, workspace, (int64_t)bytes) != SWIGLU_OK) return failed("the call");

  printf("dim %" PRId64 ", hidden %" PRId64 ", on %s, swiglu %s\n", info.dim, info.hidden, swiglu_isa_name(info.isa),
         swiglu_version());
  for (int64_t token = 0; token < TOKENS; ++token) {
    printf("token %" PRId64 ": %.6g %.6g …\n", token, (double)h[token * info.dim], (double)h[token * info.dim + 1]);
  }
  free(workspace);
  free(h);
  swiglu_layer_free(layer);
  swiglu_pool_free(pool);
  return 0;
}
