"""An embedding model that needs no network: the weights and the tokenizer that the package `wordllama` brings along.

Owns how texts become vectors: the mean of the vectors of a text's tokens. The package's own loader would look for the
tokenizer elsewhere and download it, so its two files are read here and none of its code is run. It is small and quick,
and good enough to find facts by what they mean; a larger model takes its place by the same four methods.
"""

import asyncio
from importlib.util import find_spec
from pathlib import Path

from langchain_core.embeddings import Embeddings

PACKAGE = "wordllama"
WEIGHTS = "weights/l2_supercat_256.safetensors"
TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"
INSTALL = "uv sync --inexact --group demo"


class NotInstalledError(Exception):
    """The model, or what reads its files, is not there."""


class OfflineEmbedding(Embeddings):
    """Makes vectors of 256 dimensions, of length 1.

    Raises:
        NotInstalledError: The model, or what reads its files, is not there.
    """

    model = "wordllama-l2-supercat-256"
    dims = 256

    def __init__(self) -> None:
        try:
            import numpy as np  # noqa: PLC0415  what need not be installed
            from safetensors.numpy import load_file  # noqa: PLC0415  likewise
            from tokenizers import Tokenizer  # noqa: PLC0415  likewise
        except ImportError as missing:
            raise NotInstalledError(f"{missing.name} is not installed ({INSTALL})") from None
        spec = find_spec(PACKAGE)
        if spec is None or spec.origin is None:
            raise NotInstalledError(f"{PACKAGE} is not installed ({INSTALL})")
        folder = Path(spec.origin).parent
        if not ((folder / WEIGHTS).is_file() and (folder / TOKENIZER).is_file()):
            raise NotInstalledError(f"this version of {PACKAGE} does not bring along its files")
        (weights,) = load_file(folder / WEIGHTS).values()
        self._numpy = np
        self._weights = weights.astype(np.float32)
        self._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """A vector of each text."""
        return [
            self._vector(encoding.ids) for encoding in self._tokenizer.encode_batch(texts, add_special_tokens=False)
        ]

    def embed_query(self, text: str) -> list[float]:
        """The vector of a text that is searched for."""
        (vector,) = self.embed_documents([text])
        return vector

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """A vector of each text, made beside the event loop."""
        return await asyncio.to_thread(self.embed_documents, texts)

    async def aembed_query(self, text: str) -> list[float]:
        """The vector of a text that is searched for, made beside the event loop."""
        return await asyncio.to_thread(self.embed_query, text)

    def _vector(self, tokens: list[int]) -> list[float]:
        if not tokens:
            return [0.0] * self.dims
        mean = self._weights[self._numpy.clip(tokens, 0, len(self._weights) - 1)].mean(axis=0)
        length = float(self._numpy.linalg.norm(mean))
        vector: list[float] = (mean / length if length else mean).tolist()
        return vector
