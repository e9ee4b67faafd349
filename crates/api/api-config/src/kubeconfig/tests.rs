use std::os::unix::fs::PermissionsExt;

use super::*;

fn sample(cluster: &str, user: &str) -> Kubeconfig {
    Kubeconfig::single(
        cluster,
        Cluster::with_ca("https://10.0.0.1:6443", "CA"),
        user,
        User::with_cert("CERT", "KEY"),
    )
}

#[test]
fn round_trips_and_resolves_kubeadm_file() {
    let config = sample("kubernetes", "kubernetes-admin");
    let text = config.to_yaml().unwrap();
    assert_eq!(
        text,
        "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: Q0E=\n    server: https://10.0.0.1:6443\n  \
         name: kubernetes\ncontexts:\n- context:\n    cluster: kubernetes\n    user: kubernetes-admin\n  \
         name: kubernetes-admin@kubernetes\ncurrent-context: kubernetes-admin@kubernetes\nkind: Config\nusers:\n\
         - name: kubernetes-admin\n  user:\n    client-certificate-data: Q0VSVA==\n    client-key-data: S0VZ\n"
    );
    let read = Kubeconfig::parse(&text).unwrap();
    assert_eq!(read, config);
    let current = read.current().unwrap();
    assert_eq!(current.cluster.ca_pem().unwrap().as_deref(), Some("CA"));
    assert_eq!(current.user.key_pem().unwrap().as_deref(), Some("KEY"));
    assert_eq!(current.namespace, "default");
}

#[test]
fn merges_by_name_and_removes_unused_entries() {
    let mut config = sample("a", "admin");
    let mut other = sample("b", "admin");
    other.users[0].user.token = "new".to_owned();
    config.merge(other);
    assert_eq!((config.clusters.len(), config.contexts.len(), config.users.len()), (2, 2, 1));
    assert_eq!(
        (config.current_context.as_str(), config.users[0].user.token.as_str()),
        ("admin@b", "new")
    );
    assert!(config.remove("admin@b"));
    assert!(!config.remove("admin@b"));
    assert_eq!((config.clusters.len(), config.contexts.len(), config.users.len()), (1, 1, 1));
    assert!(matches!(config.current(), Err(Error::NoCurrentContext { .. })));
}

#[test]
fn lists_existing_entries_when_one_is_missing() {
    let mut config = sample("a", "admin");
    config.current_context = "other".to_owned();
    let error = config.current().err().unwrap().to_string();
    assert_eq!(error, r#"the kubeconfig has no context "other"; it has admin@a"#);
}

#[test]
fn writes_private_file_and_resolves_relative_paths() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sub/config");
    update_file(&path, |c| c.merge(sample("a", "admin"))).unwrap();
    update_file(&path, |c| {
        let cluster = Cluster { certificate_authority: "ca.crt".to_owned(), ..Cluster::default() };
        c.merge(Kubeconfig::single("b", cluster, "x", User::with_token("t")));
    })
    .unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(
        fs::read_dir(dir.path().join("sub")).unwrap().count(),
        1,
        "no lock or temporary file is left"
    );
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{text}preferences: {{}}\nsomething: new\n")).unwrap();
    let config = Kubeconfig::load(&path).unwrap();
    assert_eq!(config.contexts.len(), 2);
    let ca = &config.current().unwrap().cluster.certificate_authority;
    assert_eq!(Path::new(ca), dir.path().join("sub/ca.crt"));
}

#[test]
fn fails_if_file_is_locked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config");
    let lock = dir.path().join("config.lock");
    fs::write(&lock, "").unwrap();
    assert!(matches!(update_file(&path, |_| ()), Err(Error::Locked { .. })));
    assert!(lock.exists() && !path.exists());
}

#[test]
fn changes_same_file_as_kubectl() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("a"), dir.path().join("b"));
    let env = format!("{}:{}", first.display(), second.display());
    assert_eq!(file_to_change(None, Path::new("/root")), Path::new("/root/.kube/config"));
    assert_eq!(file_to_change(Some(&env), Path::new("/root")), second);
    fs::write(&first, "").unwrap();
    assert_eq!(file_to_change(Some(&env), Path::new("/root")), first);
}
