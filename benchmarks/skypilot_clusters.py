"""Write so many clusters into SkyPilot's own database: `python skypilot_clusters.py COUNT`."""

import sys

from sky import Resources, clouds, global_user_state
from sky.backends import CloudVmRayResourceHandle

for number in range(int(sys.argv[1])):
    resources = Resources(cloud=clouds.Slurm(), instance_type="2CPU--8GB", region="mycluster")
    name = f"training-{number}"
    handle = CloudVmRayResourceHandle(
        cluster_name=name, cluster_name_on_cloud=name, cluster_yaml=None, launched_nodes=1,
        launched_resources=resources,
    )  # fmt: skip
    global_user_state.add_or_update_cluster(name, handle, {resources}, ready=True)
