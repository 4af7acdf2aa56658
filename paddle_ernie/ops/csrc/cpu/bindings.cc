// Every operator's registration, in one file because Paddle's headers take seconds to parse.
#include "bindings.h"

#include "bind_adamw.inc"
#include "bind_attention.inc"
#include "bind_elementwise.inc"
#include "bind_gemm.inc"
#include "bind_loss.inc"
#include "bind_model_weights.inc"
#include "bind_moe.inc"
#include "bind_norm.inc"
#include "bind_runtime.inc"
#include "bind_sample.inc"
