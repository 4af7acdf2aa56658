"""paddle_ernie: the training system behind ERNIE 5.1, rebuilt in the open on PaddlePaddle."""

__version__ = "0.1.0"
