use super::*;

#[test]
fn runs_phases_in_kubeadm_order() {
    let names: Vec<_> = phases().iter().map(|p| p.name).collect();
    let wanted = "preflight certs/ca certs/apiserver certs/apiserver-kubelet-client certs/front-proxy-ca \
        certs/front-proxy-client certs/etcd-ca certs/etcd-server certs/etcd-peer certs/etcd-healthcheck-client \
        certs/apiserver-etcd-client certs/sa kubeconfig/admin kubeconfig/super-admin kubeconfig/kubelet \
        kubeconfig/controller-manager kubeconfig/scheduler etcd/local control-plane/apiserver \
        control-plane/controller-manager control-plane/scheduler kubelet-start wait-control-plane upload-config/kubeadm \
        upload-config/kubelet upload-certs mark-control-plane bootstrap-token \
        kubelet-finalize/enable-client-cert-rotation addon/coredns addon/kube-proxy show-join-command";
    assert_eq!(names, wanted.split_whitespace().collect::<Vec<_>>());
}
