//! Fuzz tests with damaged kubeconfigs.

use crate::kubeconfig::Kubeconfig;

#[test]
fn writes_and_rereads_parsed_kubeconfigs() {
    let seed = b"apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: k\n  cluster: {server: 'https://h:6443', certificate-authority-data: aGk=}\ncontexts:\n- name: c\n  context: {cluster: k, user: u}\nusers:\n- name: u\n  user: {token: t, client-certificate-data: eA==}\n";
    fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "kubeconfig", &[seed], |input| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        let Ok(config) = Kubeconfig::parse(text) else { return };
        let _ = config.current();
        // A parsed kubeconfig can be written and parsed again.
        let written = config.to_yaml().unwrap();
        assert!(Kubeconfig::parse(&written).is_ok(), "{written}");
    });
}
