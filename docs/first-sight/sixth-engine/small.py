"""A Llama whose layers add nothing: the logits of a token are norm(embedding of the token) @ head."""
import jax, jax.numpy as jnp
from impl.models.llama import Llama, LayerWeights, LlamaWeights


def llama(embedding, head, dtype="float32"):
    embedding, head = jnp.array(embedding, dtype), jnp.array(head, dtype)
    vocabulary, embed = embedding.shape
    model = Llama(vocabulary=vocabulary, layers=1, embed=embed, q_heads=1, kv_heads=1, head_dim=2,
                  mlp=1, dtype=dtype)
    shapes = model.weight_shapes()
    zeros = jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype), shapes)
    ones = jnp.ones((embed,), dtype)
    layer = zeros.layers[0]._replace(attention_norm=ones, mlp_norm=ones)
    return model, LlamaWeights(embedding, (layer,), ones, head)
