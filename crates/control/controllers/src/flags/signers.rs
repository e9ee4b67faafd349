//! The flags that give single signers a certificate and key of their own.

use std::path::{Path, PathBuf};

/// Certificates and keys of single signers
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
pub struct SignerFlags {
    /// CA certificate of the signer kubernetes.io/kube-apiserver-client
    #[arg(long)]
    pub cluster_signing_kube_apiserver_client_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long)]
    pub cluster_signing_kube_apiserver_client_key_file: Option<PathBuf>,
    /// CA certificate of the signer kubernetes.io/kube-apiserver-client-kubelet
    #[arg(long)]
    pub cluster_signing_kubelet_client_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long)]
    pub cluster_signing_kubelet_client_key_file: Option<PathBuf>,
    /// CA certificate of the signer kubernetes.io/kubelet-serving
    #[arg(long)]
    pub cluster_signing_kubelet_serving_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long)]
    pub cluster_signing_kubelet_serving_key_file: Option<PathBuf>,
    /// CA certificate of the signer kubernetes.io/legacy-unknown
    #[arg(long)]
    pub cluster_signing_legacy_unknown_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long)]
    pub cluster_signing_legacy_unknown_key_file: Option<PathBuf>,
}

/// The files of one signer.
pub(super) struct SignerFiles<'a> {
    pub(super) signer: &'static str,
    /// The part of the flags' names.
    pub(super) flag: &'static str,
    pub(super) certificate: Option<&'a Path>,
    pub(super) key: Option<&'a Path>,
}

impl SignerFlags {
    pub(super) fn files(&self) -> [SignerFiles<'_>; 4] {
        fn of<'a>(
            signer: &'static str,
            flag: &'static str,
            certificate: &'a Option<PathBuf>,
            key: &'a Option<PathBuf>,
        ) -> SignerFiles<'a> {
            let (certificate, key) = (certificate.as_deref(), key.as_deref());
            SignerFiles { signer, flag, certificate, key }
        }
        [
            of(
                "kubernetes.io/kube-apiserver-client",
                "kube-apiserver-client",
                &self.cluster_signing_kube_apiserver_client_cert_file,
                &self.cluster_signing_kube_apiserver_client_key_file,
            ),
            of(
                "kubernetes.io/kube-apiserver-client-kubelet",
                "kubelet-client",
                &self.cluster_signing_kubelet_client_cert_file,
                &self.cluster_signing_kubelet_client_key_file,
            ),
            of(
                "kubernetes.io/kubelet-serving",
                "kubelet-serving",
                &self.cluster_signing_kubelet_serving_cert_file,
                &self.cluster_signing_kubelet_serving_key_file,
            ),
            of(
                "kubernetes.io/legacy-unknown",
                "legacy-unknown",
                &self.cluster_signing_legacy_unknown_cert_file,
                &self.cluster_signing_legacy_unknown_key_file,
            ),
        ]
    }
}
