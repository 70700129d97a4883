"""Whether a run's policy is shown images, and at which size: its folder's own rule within the config's limit."""

from configs import ConfigError
from rollout.pictures import PictureRule
from rollout.render import ChatFormat
from wc_jax.config import Config
from wc_jax.policy import PolicyConfig

IMAGES_A_WINDOW = 4
"""The window must have room for so many images of the largest size."""


def picture_rule(config: Config, policy: PolicyConfig, chat: ChatFormat) -> PictureRule | None:
    """None: its policy reads text only. Raises `ConfigError` where it could see but something is missing."""
    most = config.rollout.max_image_pixels
    if policy.vision is None or not most:
        return None
    folder = config.model.folder
    try:
        rule = PictureRule.load(folder).within(most)
    except (ValueError, OSError) as error:
        raise ConfigError(f"{error}. Mend the folder, or write rollout.max_image_pixels=0 to show no images") from error
    found = (rule.patch_size, rule.merge_size, chat.image_id)
    expected = (policy.vision.patch_size, policy.vision.merge_size, policy.image_token_id)
    if found != expected:
        raise ConfigError(
            f"model.folder={folder}: patch size, patches a side of a token and the token's id are {expected} in"
            f" config.json, but {found} in preprocessor_config.json and tokenizer.json; take all three files from one"
            " release, or write rollout.max_image_pixels=0 to show no images"
        )
    share = config.agent.window_tokens // IMAGES_A_WINDOW
    if rule.max_tokens > share:
        raise ConfigError(
            f"rollout.max_image_pixels={most} lets an image have {rule.max_tokens} tokens, more than a quarter of"
            f" agent.window_tokens={config.agent.window_tokens}; write rollout.max_image_pixels={share * rule.side**2}"
            " or less"
        )
    return rule
