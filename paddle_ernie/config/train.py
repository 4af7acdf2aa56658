"""`train:`, `checkpoint:`, `eval:`, `monitor:` of a training stage."""

from typing import Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from paddle_ernie.config.base import Section, key_fault
from paddle_ernie.config.elastic import SubnetSpec


class TrainConfig(Section):
    """Steps, batch, optimizer (AdamW) and schedule."""

    max_steps: int = Field(ge=1, le=1_000_000_000)
    """Optimizer steps."""
    global_batch_size: int = Field(16, ge=1, le=1_000_000_000)
    """Rows per optimizer step."""
    micro_batch_size: int | None = Field(None, ge=1)
    """Rows per forward and backward; null means the global batch. Gradients accumulate."""
    learning_rate: float = Field(1e-3, gt=0)
    """Peak rate."""
    min_learning_rate: float = Field(0.0, ge=0)
    """Rate at the last step."""
    lr_scheduler_type: Literal["wsd", "cosine", "constant"] = "wsd"
    """`wsd`: linear warm-up, constant, then decay over `decay_steps`. `cosine`: warm-up, cosine."""
    warmup_steps: int = Field(0, ge=0)
    """Steps of the linear warm-up, within `max_steps`."""
    decay_steps: int = Field(0, ge=0)
    """Length of the decay of `wsd` (1 - sqrt shape ends at min_learning_rate)."""
    weight_decay: float = Field(0.1, ge=0)
    """Decoupled; norms, biases and the router's correction bias are exempt."""
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    """Decay of the running mean of gradients."""
    adam_beta2: float = Field(0.95, ge=0, lt=1)
    """Decay of the running mean of squared gradients."""
    adam_epsilon: float = Field(1e-8, gt=0)
    """Added to the root of the second moment."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are scaled down to this global norm."""
    moe_bias_update_speed: float = Field(1e-3, ge=0)
    """Step of the auxiliary-loss-free balancing bias (1e-4, then 1e-5 in ERNIE 5.0); 0: off."""
    moe_balance_loss_weight: float = Field(0.0, ge=0)
    """Weight of the sequence-level balance loss (DeepSeek-V3, section 2.1.2)."""
    mtp_loss_weight: float = Field(0.3, ge=0)
    """Weight of the multi-token-prediction loss (0.3, then 0.1 in ERNIE 5.0)."""
    recompute: bool = False
    """Recompute each block in the backward pass: less memory, a third more compute."""
    max_nonfinite_steps: int = Field(5, ge=0)
    """Steps in a row with a non-finite loss or gradient that are skipped before the run stops."""

    @model_validator(mode="after")
    def _check_batch(self) -> Self:
        if self.global_batch_size % self.micro_rows:
            raise key_fault(
                "global_batch_size",
                f"global_batch_size {self.global_batch_size} is not a multiple of "
                f"micro_batch_size {self.micro_rows}",
            )
        if self.warmup_steps + self.decay_steps > self.max_steps:
            raise key_fault(
                "max_steps",
                f"warmup_steps {self.warmup_steps} + decay_steps {self.decay_steps} exceed "
                f"max_steps {self.max_steps}; lower them, or raise it",
            )
        if self.min_learning_rate > self.learning_rate:
            raise key_fault(
                "min_learning_rate",
                f"min_learning_rate {self.min_learning_rate} exceeds learning_rate "
                f"{self.learning_rate}",
            )
        return self

    @property
    def micro_rows(self) -> int:
        """Rows per forward."""
        return self.micro_batch_size or self.global_batch_size


class CheckpointConfig(Section):
    """When training state is saved; the last step always is."""

    save_steps: int = Field(200, ge=1)
    """Steps between checkpoints."""
    keep: int = Field(2, ge=1)
    """Newest checkpoints kept. Two, so that an altered newest one has a predecessor."""


class EvalConfig(Section):
    """Validation loss of the full model and of named subnets."""

    eval_steps: int = Field(100, ge=1)
    """Steps between evaluations; the last step always has one."""
    eval_rows: int = Field(32, ge=1)
    """Validation rows (of max_seq_len tokens) per evaluation during training, always the same."""
    final_eval_rows: int = Field(128, ge=1)
    """Validation rows of the evaluation after the last step."""
    subnets: dict[str, SubnetSpec] = Field({})
    """Named subnets that are evaluated beside the full model."""


class MonitorConfig(Section):
    """What is logged, and how often."""

    logging_steps: int = Field(10, ge=1)
    """Steps between log records."""
    sample_prompts: list[str] = Field([])
    """Prompts that are continued (greedily) and logged as text at every evaluation."""
    sample_tokens: int = Field(48, ge=1)
    """Tokens of a text sample."""
    histograms: bool = True
    """Log expert-load histograms to VisualDL."""
    peak_gflops: float | None = Field(None, gt=0)
    """Peak of this machine in GFLOP/s for FLOP utilisation; null measures a large fp32 product."""
