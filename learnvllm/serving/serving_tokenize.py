"""POST /tokenize and /detokenize: what the model will read, before paying for it.

Upstream namesake: vllm/entrypoints/serve/tokenize/serving.py (ServingTokenization).
"""

from __future__ import annotations

from learnvllm.serving.protocol import DetokenizeRequest, TokenizeRequest
from learnvllm.serving.renderer import Renderer
from learnvllm.serving.request_params import chat_params
from learnvllm.serving.responses import DetokenizeResponse, TokenizeResponse
from learnvllm.serving.serving_models import OpenAIServingModels


class ServingTokenization:
    def __init__(self, renderer: Renderer, models: OpenAIServingModels) -> None:
        self.renderer = renderer
        self.models = models

    async def tokenize(self, request: TokenizeRequest) -> TokenizeResponse:
        self.models.check(request.model)
        if request.messages is not None:
            prompt = await self.renderer.render_chat_async(request.messages, chat_params(request))
        else:
            special = request.add_special_tokens is not False
            prompt = await self.renderer.render_prompt_async(request.prompt or "", special)
        strings = None
        if request.return_token_strs:
            strings = [self.renderer.tokenizer.id_to_token(token) or "" for token in prompt.token_ids]
        return TokenizeResponse(
            count=len(prompt.token_ids),
            max_model_len=self.renderer.max_model_len,
            tokens=prompt.token_ids,
            token_strs=strings,
        )

    async def detokenize(self, request: DetokenizeRequest) -> DetokenizeResponse:
        self.models.check(request.model)
        return DetokenizeResponse(prompt=await self.renderer.decode_async(request.tokens, "tokens"))
