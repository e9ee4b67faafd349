//! Files of one volume that hide each other: two keys at one path, or one at a path through another.

use api_meta::Tree as _;
use serde_json::Value;

/// A file, and what it comes of where a volume has several sources.
struct File {
    path: String,
    source: String,
}

impl File {
    fn words(&self) -> String {
        match self.source.is_empty() {
            true => format!("{:?}", self.path),
            false => format!("{:?} ({})", self.path, self.source),
        }
    }

    fn meets(&self, other: &File) -> bool {
        let whole = |file: &File| format!("{}/", file.path);
        !other.path.is_empty()
            && (whole(self).starts_with(&whole(other)) || whole(other).starts_with(&whole(self)))
    }
}

/// The warnings for all volumes of a Pod.
pub(super) fn of(spec: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    for volume in spec.items("volumes") {
        for (kind, shown) in [
            ("configMap", format!("ConfigMap {:?}", volume.text("configMap.name"))),
            ("secret", format!("Secret {:?}", volume.text("secret.secretName"))),
            ("downwardAPI", "DownwardAPI".to_owned()),
        ] {
            overlaps(volume, &shown, files(volume.at(kind), ""), &mut Vec::new(), &mut warnings);
        }
        let mut all = Vec::new();
        for source in volume.items("projected.sources") {
            if source.as_object().is_none_or(serde_json::Map::is_empty) {
                let name = volume.text("name");
                warnings.push(format!("volume {name:?} (Projected) has no sources provided"));
            }
            overlaps(volume, "Projected", projected(source), &mut all, &mut warnings);
        }
    }
    warnings
}

fn overlaps(
    volume: &Value,
    of: &str,
    files: Vec<File>,
    all: &mut Vec<File>,
    warnings: &mut Vec<String>,
) {
    for file in files {
        let met = all.iter().filter(|other| !file.path.is_empty() && file.meets(other));
        warnings.extend(met.map(|other| {
            let (name, new, old) = (volume.text("name"), file.words(), other.words());
            format!("volume {name:?} ({of}): overlapping paths: {new} with {old}")
        }));
        all.push(file);
    }
}

fn file(path: &str, source: &str) -> File {
    File { path: path.trim_end_matches('/').to_owned(), source: source.to_owned() }
}

fn files(source: &Value, of: &str) -> Vec<File> {
    source.items("items").iter().map(|item| file(item.text("path"), of)).collect()
}

fn projected(source: &Value) -> Vec<File> {
    let named = |kind: &str, word: &str| {
        let name = source.at(kind).text("name");
        files(source.at(kind), &format!("{word} {name:?}"))
    };
    let one = |path: &str, of: &str| match source.blank(path) {
        true => Vec::new(),
        false => vec![file(source.text(path), of)],
    };
    let bundle = match source.text("clusterTrustBundle.name") {
        "" => source.text("clusterTrustBundle.signerName"),
        name => name,
    };
    [
        named("configMap", "ConfigMap"),
        named("secret", "Secret"),
        files(source.at("downwardAPI"), "DownwardAPI"),
        one("serviceAccountToken.path", "ServiceAccountToken"),
        one("clusterTrustBundle.path", &format!("ClusterTrustBundle {bundle:?}")),
        one("podCertificate.certificateChainPath", "PodCertificate chain"),
        one("podCertificate.keyPath", "PodCertificate key"),
        one("podCertificate.credentialBundlePath", "PodCertificate credential bundle"),
    ]
    .into_iter()
    .flatten()
    .collect()
}
