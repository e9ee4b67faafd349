use super::*;

#[test]
fn runs_phases_in_kubeadm_order() {
    let names: Vec<_> = phases().iter().map(|p| p.name).collect();
    let wanted = "preflight control-plane-prepare/download-certs control-plane-prepare/certs \
        control-plane-prepare/kubeconfig control-plane-prepare/control-plane check-etcd kubelet-start etcd-join \
        kubelet-wait-bootstrap control-plane-join/mark-control-plane wait-control-plane";
    assert_eq!(names, wanted.split_whitespace().collect::<Vec<_>>());
}
