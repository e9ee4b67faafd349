//! Interoperability with OpenSSL, if installed: each side verifies the other's certificates.

use std::{
    path::Path,
    process::{Command, Stdio},
    time::SystemTime,
};

use api_config::kubeadm::{ApiEndpoint, ClusterConfiguration};
use bootstrap_core::{
    certs::Plan,
    config::{Facts, default_cluster},
};

/// Runs OpenSSL in `dir` and returns its output; `None` if it is not installed.
fn openssl(dir: &Path, args: &[&str]) -> Option<String> {
    let output =
        Command::new("openssl").args(args).current_dir(dir).stdin(Stdio::null()).output().ok()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "openssl {args:?}: {said}");
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn plan(algorithm: &str) -> Plan {
    let mut cluster =
        ClusterConfiguration { encryption_algorithm: algorithm.into(), ..Default::default() };
    default_cluster(&mut cluster, &Facts::default());
    let local = ApiEndpoint { advertise_address: "10.0.0.5".into(), bind_port: 6443 };
    Plan::new(&cluster, &local, "alpha").unwrap()
}

#[test]
fn openssl_verifies_certificates_and_reads_keys() {
    for algorithm in ["RSA-2048", "ECDSA-P256", "ECDSA-P384"] {
        let dir = tempfile::tempdir().unwrap();
        let plan = plan(algorithm);
        bootstrap::certs::ensure(dir.path(), &plan, SystemTime::now()).unwrap();
        for leaf in &plan.leaves {
            let (cert, key) = (format!("{}.crt", leaf.base), format!("{}.key", leaf.base));
            let purpose = if leaf.spec.usage.server() { "sslserver" } else { "sslclient" };
            let ca = format!("{}.crt", leaf.ca.base());
            let Some(said) = openssl(
                dir.path(),
                &["verify", "-x509_strict", "-purpose", purpose, "-CAfile", &ca, &cert],
            ) else {
                eprintln!("not run: there is no OpenSSL");
                return;
            };
            assert!(said.ends_with("OK\n"), "{said}");
            let of_cert = openssl(dir.path(), &["x509", "-in", &cert, "-noout", "-pubkey"]);
            assert_eq!(openssl(dir.path(), &["pkey", "-in", &key, "-pubout"]), of_cert);
        }
    }
}

#[test]
fn issues_leaves_from_openssl_authority() {
    for new_key in [&["rsa:2048"][..], &["ec", "-pkeyopt", "ec_paramgen_curve:P-384"]] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("etcd")).unwrap();
        for base in ["ca", "front-proxy-ca", "etcd/ca"] {
            let (cert, key) = (format!("{base}.crt"), format!("{base}.key"));
            let mut args = vec!["req", "-x509", "-nodes", "-days", "30", "-newkey"];
            args.extend(new_key);
            // A multi-part subject with a non-ASCII part must be preserved byte by byte.
            args.extend([
                "-utf8",
                "-subj",
                "/C=DE/O=Éxample/OU=a/OU=b/CN=root",
                "-keyout",
                &key,
                "-out",
                &cert,
            ]);
            if openssl(dir.path(), &args).is_none() {
                eprintln!("not run: there is no OpenSSL");
                return;
            }
        }
        let plan = plan("ECDSA-P256");
        bootstrap::certs::ensure(dir.path(), &plan, SystemTime::now()).unwrap();
        for leaf in &plan.leaves {
            let (ca, cert) = (format!("{}.crt", leaf.ca.base()), format!("{}.crt", leaf.base));
            openssl(dir.path(), &["verify", "-CAfile", &ca, &cert]);
            let end = |name: &str| {
                pki::read_cert(&dir.path().join(name)).unwrap().info().unwrap().not_after
            };
            assert_eq!(end(&cert), end(&ca), "no leaf outlives a short-lived authority");
        }
    }
}
