//! Tests the gRPC API with a Python client generated from the service definition.
//!
//! `MATCHBOX_SOURCE` names a checkout of Matchbox whose published definition is used instead of ours. `MATCHBOX_PYTHON`
//! names a Python with grpcio-tools; the default is the first `python3` or Debian's.

use std::{path::Path, time::SystemTime};

use pki::{AltName, Authority, KeyAlgorithm, LeafSpec, Subject, Usage, Validity};

use crate::world::{World, inside, try_run};

/// Creates a CA, certificates of it for a server and a client, and a certificate of another CA.
fn certificates(folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    let validity = Validity::starting(SystemTime::now(), std::time::Duration::from_secs(3600));
    let authority =
        |name: &str| Authority::create(name, KeyAlgorithm::EcdsaP256, validity).unwrap();
    let (ours, another) = (authority("ours"), authority("another"));
    pki::write_cert(&folder.join("ca.crt"), ours.cert()).unwrap();
    for (name, authority) in [("server", &ours), ("client", &ours), ("stranger", &another)] {
        let spec = LeafSpec {
            subject: Subject::new(name),
            alt_names: vec![AltName::Ip("127.0.0.1".parse().unwrap())],
            usage: Usage::ServerAndClient,
        };
        let (cert, key) = authority.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity).unwrap();
        pki::write_cert(&folder.join(format!("{name}.crt")), &cert).unwrap();
        pki::write_key(&folder.join(format!("{name}.key")), &key).unwrap();
    }
}

#[test]
fn serves_generated_grpc_client() {
    if !inside("rpc::serves_generated_grpc_client") {
        return;
    }
    let named = std::env::var("MATCHBOX_PYTHON");
    let mut pythons = named.iter().map(String::as_str).chain(["python3", "/usr/bin/python3"]);
    let able = |python: &&str| try_run(&format!("{python} -c 'import grpc_tools, grpc'")).0;
    let Some(python) = pythons.find(able) else {
        eprintln!("skipped: no Python has grpcio-tools");
        return;
    };
    let mut world = World::new();
    let folder = world.path("certificates");
    certificates(&folder);
    let at = folder.display();
    world.serve(&format!(
        "--no-dhcp --no-tftp --no-dns --rpc-address 127.0.0.1:8081 --ca-file {at}/ca.crt \
         --cert-file {at}/server.crt --key-file {at}/server.key"
    ));
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (root, definition) = match std::env::var("MATCHBOX_SOURCE") {
        Ok(source) => (source, "matchbox/rpc/rpcpb/rpc.proto"),
        Err(_) => (own.join("proto").display().to_string(), "rpc.proto"),
    };
    let script = own.join("tests/it/rpc_client.py").display().to_string();
    let (ok, text) = try_run(&format!("{python} {script} {root} {definition} 127.0.0.1:8081 {at}"));
    assert!(ok, "{text}");
    world.stop();
}
