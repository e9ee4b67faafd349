//! The file of a projected volume with the trust anchors of ClusterTrustBundles.

use std::collections::BTreeSet;

use api_meta::LabelSelector;
use client::{List, ListOptions, Resource};
use k8s_openapi::api::core::v1::ClusterTrustBundleProjection;
use kubelet_objects::ObjectsError;
use pod_core::files::{File, Files, check_path};
use serde::Deserialize;

use crate::{
    error::{Error, TrustBundleError},
    plugin::Request,
};

const BUNDLES: Resource = Resource::CLUSTER_TRUST_BUNDLES;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Bundle {
    metadata: api_meta::ObjectMeta,
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    trust_bundle: String,
}

/// Returns the file of a source: the trust anchors of the named bundle, or of those that the signer's selector matches.
pub(crate) async fn files(
    request: &Request<'_>,
    source: &ClusterTrustBundleProjection,
    mode: i32,
) -> Result<Files, Error> {
    check_path(&source.path)?;
    let bundles = match (&source.name, &source.signer_name) {
        (Some(name), None) => named(request, name).await?,
        (None, Some(signer)) => of_signer(request, source, signer).await?,
        _ => return Err(Error::Unsupported),
    };
    if bundles.is_empty() && source.optional != Some(true) {
        return Err(match &source.name {
            Some(name) => Error::Missing { kind: "clustertrustbundle", name: name.clone() },
            None => TrustBundleError::NoMatch.into(),
        });
    }
    let content = anchors(&bundles)?.into_bytes().into();
    let mut files = Files::default();
    let file = File { content, mode: mode.unsigned_abs(), owner: None };
    files.insert(source.path.clone(), file)?;
    Ok(files)
}

async fn named(request: &Request<'_>, name: &str) -> Result<Vec<Bundle>, Error> {
    let objects = &request.volumes.objects;
    let bundle = objects.get(&BUNDLES, "clustertrustbundle", "", name).await?;
    Ok(bundle.into_iter().collect())
}

/// Lists the bundles of a signer that the label selector matches. Without a selector there are none.
async fn of_signer(
    request: &Request<'_>,
    source: &ClusterTrustBundleProjection,
    signer: &str,
) -> Result<Vec<Bundle>, Error> {
    let Some(client) = request.volumes.objects.client() else {
        let (kind, name) = ("clustertrustbundle", signer.to_owned());
        return Err(ObjectsError::Standalone { kind, name }.into());
    };
    let selector: Option<LabelSelector> = serde_json::to_value(&source.label_selector)
        .and_then(serde_json::from_value)
        .map_err(TrustBundleError::Decode)?;
    let selector =
        LabelSelector::selector_of(selector.as_ref()).map_err(TrustBundleError::Selector)?;
    let options = ListOptions::fields(&format!("spec.signerName={signer}"));
    let list: List<Bundle> =
        client.list(&BUNDLES, "", &options).await.map_err(ObjectsError::from)?;
    let bundles = list.items.into_iter();
    Ok(bundles.filter(|bundle| selector.matches(&bundle.metadata.labels)).collect())
}

/// Returns the certificates of all bundles as PEM text, each once and in a fixed order.
fn anchors(bundles: &[Bundle]) -> Result<String, TrustBundleError> {
    let mut certificates = BTreeSet::new();
    for bundle in bundles {
        let blocks = pki::decode_all(&bundle.spec.trust_bundle).map_err(TrustBundleError::Pem)?;
        certificates.extend(blocks.into_iter().map(|(_, der)| der));
    }
    Ok(certificates.iter().map(|der| pki::encode("CERTIFICATE", der)).collect())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use pod_core::fields::NodeFacts;
    use serde_json::{Value, json};

    use super::*;
    use crate::{Tokens, tests::volumes};

    /// Returns the content that a source gets from an API server with some bundles.
    async fn content(source: Value) -> Result<String, Error> {
        let api = testkit::FakeApi::default();
        let one = pki::encode("CERTIFICATE", b"one");
        let two = pki::encode("CERTIFICATE", b"two");
        let bundle = |name: &str, stage: &str, text: &str| json!({"metadata": {"name": name, "labels": {"stage": stage}}, "spec": {"signerName": "a.b/c", "trustBundle": text}});
        api.create(&BUNDLES, bundle("live", "live", &format!("comment\n{two}{one}"))).await;
        api.create(&BUNDLES, bundle("canary", "canary", &two)).await;
        let root = tempfile::tempdir().unwrap();
        let mounts = std::sync::Arc::new(sys::mount::RecordedMounts::default());
        let volumes = volumes(root.path(), mounts, Some(api.client("kubelet")));
        let pod: Pod = serde_json::from_value(
            json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"}}),
        )
        .unwrap();
        let volume = serde_json::from_value(json!({"name": "v"})).unwrap();
        let tokens = Tokens::default();
        let request = Request {
            volumes: &volumes,
            pod: &pod,
            volume: &volume,
            node: &NodeFacts::default,
            tokens: &tokens,
        };
        let source: ClusterTrustBundleProjection = serde_json::from_value(source).unwrap();
        let files = files(&request, &source, 0o644).await?;
        Ok(String::from_utf8(files["ca.pem"].content.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn unifies_bundles_of_name_or_signer() {
        let (one, two) = (pki::encode("CERTIFICATE", b"one"), pki::encode("CERTIFICATE", b"two"));
        let all = format!("{one}{two}");
        for (source, wanted) in [
            (json!({"name": "live", "path": "ca.pem"}), all.clone()),
            (json!({"name": "gone", "path": "ca.pem", "optional": true}), String::new()),
            (json!({"signerName": "a.b/c", "labelSelector": {}, "path": "ca.pem"}), all),
            (
                json!({"signerName": "a.b/c", "labelSelector": {"matchLabels": {"stage": "canary"}}, "path": "ca.pem"}),
                two,
            ),
            (json!({"signerName": "a.b/c", "optional": true, "path": "ca.pem"}), String::new()),
        ] {
            assert_eq!(content(source.clone()).await.unwrap(), wanted, "{source}");
        }
    }

    #[tokio::test]
    async fn fails_without_bundle_and_outside_of_the_volume() {
        for (source, wanted) in [
            (json!({"name": "gone", "path": "ca.pem"}), "clustertrustbundle \"gone\" not found"),
            (
                json!({"signerName": "a.b/c", "path": "ca.pem"}),
                "combination of signerName and labelSelector matched zero ClusterTrustBundles",
            ),
        ] {
            assert_eq!(content(source).await.unwrap_err().to_string(), wanted);
        }
        assert!(content(json!({"name": "live", "path": "../ca.pem"})).await.is_err());
    }
}
