"""Names of the profiles that come with the project.

They stand apart from `profiles.py`, because the schema needs only the names, and the profiles need
the schema.
"""

from typing import Literal

ProfileName = Literal["tofu", "open-unlearning", "tofu-paper", "closer-look", "unlearnbench"]
