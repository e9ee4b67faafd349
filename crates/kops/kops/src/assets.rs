//! Runs `kops get assets`: the images and files that a cluster's machines download, as the last update has stored them.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
};

use api_meta::Tree as _;
use kops_api::{Object, yaml};
use kops_store::Registry;
use serde_json::{Map, Value, json};

use crate::{document, error::Error, table};

/// The directories of a cluster with manifests and node configurations.
const DIRECTORIES: [&str; 3] = ["addons", "igconfig", "manifests"];

/// The assets of a cluster.
#[derive(Default)]
struct Assets {
    images: BTreeSet<String>,
    /// The hashes, by URL.
    files: BTreeMap<String, String>,
}

pub(crate) fn show(
    registry: &Registry,
    cluster: &Object,
    output: &str,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let name = cluster.name();
    if registry.complete_cluster(name)?.spec.has("assets") {
        return Err(Error::MovedAssets(name.to_owned()));
    }
    let assets = collect(registry, name)?;
    let images: Vec<_> =
        assets.images.iter().map(|image| json!({"canonical": image, "download": image})).collect();
    let file =
        |(url, hash): (&String, &String)| json!({"canonical": url, "download": url, "sha": hash});
    let files: Vec<_> = assets.files.iter().map(file).collect();
    let parts = [("images", images), ("files", files)];
    let parts = parts.into_iter().filter(|(_, items)| !items.is_empty());
    let tree = Value::from(
        parts.map(|(part, items)| (part.to_owned(), items.into())).collect::<Map<_, _>>(),
    );
    match output {
        "yaml" | "json" => document::print(out, output, &tree)?,
        _ => {
            writeln!(out)?;
            let rows = assets.images.into_iter().map(|image| [image.clone(), image]);
            table::print(out, ["CANONICAL", "DOWNLOAD"], rows.collect())?;
            writeln!(out)?;
            let rows = assets.files.into_iter().map(|(url, hash)| [url.clone(), url, hash]);
            table::print(out, ["CANONICAL", "DOWNLOAD", "SHA"], rows.collect())?;
        }
    }
    Ok(())
}

fn collect(registry: &Registry, cluster: &str) -> Result<Assets, Error> {
    let mut assets = Assets::default();
    let mut paths = vec![format!("{cluster}/cluster-completed.spec")];
    for directory in DIRECTORIES {
        let objects = registry.list_objects(&format!("{cluster}/{directory}"))?;
        paths.extend(objects.into_iter().filter(|path| path.ends_with(".yaml")));
    }
    for path in &paths {
        let Some((content, _)) = registry.read_object(path)? else { continue };
        for tree in yaml::parse_all(path, &String::from_utf8_lossy(&content))? {
            collect_images(&tree, &mut assets.images);
            collect_files(&tree, &mut assets.files);
        }
    }
    Ok(assets)
}

/// Collects the images of containers and components in a document.
fn collect_images(tree: &Value, images: &mut BTreeSet<String>) {
    match tree {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(image)
                        if ["image", "podInfraContainerImage", "sandboxImage"]
                            .contains(&name.as_str())
                            && !image.is_empty() =>
                    {
                        images.insert(image.clone());
                    }
                    value => collect_images(value, images),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_images(item, images)),
        _ => {}
    }
}

/// Collects the files of a node configuration: `HASH@URL,MIRROR...` by architecture.
fn collect_files(tree: &Value, files: &mut BTreeMap<String, String>) {
    for lists in tree.at("Assets").as_object().into_iter().flat_map(Map::values) {
        for asset in lists.as_array().into_iter().flatten().filter_map(Value::as_str) {
            let (hash, urls) = asset.split_once('@').unwrap_or(("", asset));
            let url = urls.split(',').next().unwrap_or_default();
            files.insert(url.to_owned(), hash.to_owned());
        }
    }
}
