"""Tests the Kubernetes client for Python. Arguments: a kubeconfig, a namespace, and an image with a shell."""

import json
import sys
import threading

from kubernetes import client, config, dynamic, watch
from kubernetes.stream import stream

kubeconfig, namespace, image = sys.argv[1:4]
config.load_kube_config(kubeconfig)
core, apps = client.CoreV1Api(), client.AppsV1Api()


def done(what):
    print("ok:", what, flush=True)


# Create, get, and list with a selector and in pages.
for number in range(5):
    metadata = client.V1ObjectMeta(name=f"map-{number}", labels={"of": "python"})
    core.create_namespaced_config_map(namespace, client.V1ConfigMap(metadata=metadata, data={"n": str(number)}))
assert core.read_namespaced_config_map("map-3", namespace).data == {"n": "3"}
names, token = [], None
while token != "":
    page = core.list_namespaced_config_map(namespace, label_selector="of=python", limit=2, _continue=token)
    names += [item.metadata.name for item in page.items]
    token = page.metadata._continue or ""
assert names == [f"map-{number}" for number in range(5)], names
done("create, get, list")

# Watch from the resourceVersion of a list.
since = core.list_namespaced_config_map(namespace).metadata.resource_version
core.patch_namespaced_config_map("map-0", namespace, {"data": {"n": "new"}})
core.delete_namespaced_config_map("map-1", namespace)
seen = []
for event in watch.Watch().stream(
    core.list_namespaced_config_map, namespace, label_selector="of=python", resource_version=since, timeout_seconds=30
):
    seen.append((event["type"], event["object"].metadata.name))
    if len(seen) == 2:
        break
assert seen == [("MODIFIED", "map-0"), ("DELETED", "map-1")], seen
done("watch")

# A replacement by a stale object is a conflict.
stale = core.read_namespaced_config_map("map-2", namespace)
core.patch_namespaced_config_map("map-2", namespace, {"data": {"n": "newer"}})
try:
    core.replace_namespaced_config_map("map-2", namespace, stale)
    raise AssertionError("a stale object replaced a newer one")
except client.ApiException as error:
    assert error.status == 409 and "the object has been modified" in error.body, error
done("conflict")

# Server-side apply with two field managers.
def apply(manager, data, force=False):
    """Returns status code and body of an apply. Uses a call that old and new versions of the client have."""
    applied = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": data}
    path = f"/api/v1/namespaces/{namespace}/configmaps/applied?fieldManager={manager}&force={str(force).lower()}"
    headers = {"Content-Type": "application/apply-patch+yaml", "Accept": "application/json"}
    api = core.api_client
    try:
        url = api.configuration.host + path
        answer = api.rest_client.request("PATCH", url, headers=headers, body=json.dumps(applied))
        body = answer.data if hasattr(answer, "data") and answer.data else answer.read()
        return answer.status, json.loads(body)
    except client.ApiException as error:
        return error.status, json.loads(error.body)


assert apply("one", {"a": "1", "b": "1"})[0] == 201
status, refused = apply("two", {"b": "2"})
assert status == 409 and 'conflict with "one"' in refused["message"], refused
assert apply("two", {"b": "2"}, force=True)[0] == 200
assert apply("one", {})[1]["data"] == {"b": "2"}
done("apply")

# The dynamic client, with discovery.
kinds = dynamic.DynamicClient(client.ApiClient())
deployments = kinds.resources.get(api_version="apps/v1", kind="Deployment")
pod = {"metadata": {"labels": {"app": "py"}}, "spec": {"containers": [{"name": "c", "image": image}]}}
body = {
    "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "py"},
    "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "py"}}, "template": pod},
}
deployments.create(body=body, namespace=namespace)
for event in watch.Watch().stream(apps.list_namespaced_deployment, namespace, timeout_seconds=60):
    if event["object"].status.available_replicas:
        break
else:
    raise AssertionError("the deployment is not available after a minute")
done("dynamic client and rollout")

# Exec over WebSocket, with input and an exit code.
name = core.list_namespaced_pod(namespace, label_selector="app=py").items[0].metadata.name


def execute(*command, **more):
    return stream(
        core.connect_get_namespaced_pod_exec, name, namespace, command=list(command),
        stderr=True, stdin=True, stdout=True, tty=False, **more,
    )


assert execute("echo", "hello").strip() == "hello"
talk = execute("sh", "-c", "read line; echo got $line; echo bad >&2; exit 7", _preload_content=False)
talk.write_stdin("this\n")
talk.run_forever(timeout=20)
assert talk.read_stdout().strip() == "got this" and talk.read_stderr().strip() == "bad"
assert talk.returncode == 7, talk.returncode
done("exec")

# Logs, complete and followed.
execute("sh", "-c", "echo from within > /proc/1/fd/1")
text = core.read_namespaced_pod_log(name, namespace, tail_lines=1)
assert text == "from within\n", text
lines = watch.Watch().stream(core.read_namespaced_pod_log, name, namespace, tail_lines=1)
threading.Timer(0.5, lambda: execute("sh", "-c", "echo again > /proc/1/fd/1")).start()
assert [next(lines), next(lines)] == ["from within", "again"]
done("logs")
