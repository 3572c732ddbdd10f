from dlctl.api import (
    Search as Search,
)
from dlctl.api import (
    StoredModel as StoredModel,
)
from dlctl.api import (
    Training as Training,
)
from dlctl.api import (
    model as model,
)
from dlctl.api import (
    search_of as search_of,
)
from dlctl.api import (
    start_search as start_search,
)
from dlctl.api import (
    stored_models as stored_models,
)
from dlctl.api import (
    submit as submit,
)
from dlctl.api import (
    training as training,
)
from dlctl.api import (
    trainings as trainings,
)

__version__: str
