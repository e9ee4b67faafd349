"""A client of Matchbox's gRPC API, generated here from the service definition.

usage: rpc_client.py PROTO_ROOT RPC_PROTO ADDRESS CERTIFICATES
"""

import importlib
import pathlib
import sys
import tempfile

import grpc
from grpc_tools import protoc

root, definition, address, certificates = sys.argv[1:]
out = tempfile.mkdtemp()
# The service's file and those that it imports.
folder = pathlib.PurePath(definition).parent
files = [definition]
for line in pathlib.Path(root, definition).read_text().splitlines():
    if line.startswith("import "):
        files.append(line.split('"')[1])
        for inner in pathlib.Path(root, files[-1]).read_text().splitlines():
            if inner.startswith("import "):
                files.append(inner.split('"')[1])
options = [f"-I{root}", f"--python_out={out}", f"--grpc_python_out={out}"]
assert protoc.main(["protoc", *options, *files]) == 0
sys.path.insert(0, out)


def module(path, suffix):
    return importlib.import_module(path.removesuffix(".proto").replace("/", ".") + suffix)


rpc, messages, storage = module(files[0], "_pb2_grpc"), module(files[1], "_pb2"), module(files[2], "_pb2")
read = lambda name: pathlib.Path(certificates, name).read_bytes()
with_certificate = grpc.ssl_channel_credentials(read("ca.crt"), read("client.key"), read("client.crt"))
without = grpc.ssl_channel_credentials(read("ca.crt"))
of_another = grpc.ssl_channel_credentials(read("ca.crt"), read("stranger.key"), read("stranger.crt"))


def code(call):
    try:
        call()
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


for credentials in [without, of_another]:
    with grpc.secure_channel(address, credentials) as channel:
        listing = lambda: rpc.GroupsStub(channel).GroupList(messages.GroupListRequest(), timeout=5)
        assert code(listing) == grpc.StatusCode.UNAVAILABLE, code(listing)

with grpc.secure_channel(address, with_certificate) as channel:
    groups, profiles = rpc.GroupsStub(channel), rpc.ProfilesStub(channel)
    group = storage.Group(
        id="node1", profile="fedora", selector={"mac": "52:54:00:00:00:01"}, metadata=b'{"a": {"b": 1}}')
    groups.GroupPut(messages.GroupPutRequest(group=group))
    boot = storage.NetBoot(kernel="/assets/k", initrd=["/assets/i"], args=["a=b"])
    profile = storage.Profile(id="fedora", ignition_id="f.yaml", generic_id="g", boot=boot)
    profiles.ProfilePut(messages.ProfilePutRequest(profile=profile))
    for stub, kind in [(rpc.IgnitionStub(channel), "Ignition"), (rpc.GenericStub(channel), "Generic")]:
        request = lambda verb, **of: getattr(messages, f"{kind}{verb}Request")(**of)
        call = lambda verb, **of: getattr(stub, f"{kind}{verb}")(request(verb, **of))
        call("Put", name="t", config=b"text")
        assert call("Get", name="t").config == b"text"
        call("Delete", name="t")
        assert code(lambda: call("Get", name="t")) == grpc.StatusCode.UNKNOWN
        assert code(lambda: call("Put", name="../..", config=b"")) == grpc.StatusCode.UNKNOWN
    got = groups.GroupGet(messages.GroupGetRequest(id="node1")).group
    assert (got.profile, dict(got.selector)) == ("fedora", {"mac": "52:54:00:00:00:01"}), got
    assert got.metadata == b'{"a":{"b":1}}', got.metadata
    assert [g.id for g in groups.GroupList(messages.GroupListRequest()).groups] == ["default", "node1"]
    assert [p.id for p in profiles.ProfileList(messages.ProfileListRequest()).profiles] == ["fedora", "p"]
    got = profiles.ProfileGet(messages.ProfileGetRequest(id="fedora")).profile
    assert got == profile, got
    select = rpc.SelectStub(channel)
    labels = {"mac": "52:54:00:00:00:01"}
    assert select.SelectGroup(messages.SelectGroupRequest(labels=labels)).group.id == "node1"
    assert select.SelectProfile(messages.SelectProfileRequest(labels=labels)).profile == profile
    for wrong in [storage.Group(profile="p"), storage.Group(id="x"), None]:
        put = lambda: groups.GroupPut(messages.GroupPutRequest(group=wrong))
        assert code(put) == grpc.StatusCode.UNKNOWN
    groups.GroupDelete(messages.GroupDeleteRequest(id="default"))
    nobody = lambda: select.SelectGroup(messages.SelectGroupRequest(labels={"mac": "x"}))
    assert code(nobody) == grpc.StatusCode.NOT_FOUND
    profiles.ProfileDelete(messages.ProfileDeleteRequest(id="fedora"))
    lost = lambda: select.SelectProfile(messages.SelectProfileRequest(labels=labels))
    assert code(lost) == grpc.StatusCode.NOT_FOUND
print("all calls passed")
