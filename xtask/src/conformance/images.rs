//! Makes stand-ins for the images of upstream's tests, because no registry is used.
//!
//! A table says what each image contains. mmdebstrap unpacks Debian's packages.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::{
    error::{During, Result, fail},
    file::{create_directory, write},
    machine,
    run::{pass, program, sha256},
};

const TABLE: &str = include_str!("../../facts/conformance-images.tsv");

const ENVIRONMENT: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The registry of upstream's images.
const REGISTRY: &str = "registry.k8s.io/";

/// The release of Debian whose packages are unpacked.
const RELEASE: &str = "bookworm";

/// The part of the packages that no program reads. The node's runtime writes `/dev` and the two files of `/etc`.
const UNUSED: &[&str] = &[
    "dev",
    "etc/hostname",
    "etc/resolv.conf",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "var/cache",
    "var/lib/apt",
    "var/lib/dpkg",
];

/// The programs in the directory `$DIR` without which no tests run. The rows of missing other programs are left out.
const PROGRAMS: &[&str] = &["agnhost", "sample-apiserver"];

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Recipe<'a> {
    /// The last part of the image's name, without the tag.
    image: &'a str,
    from: Option<&'a str>,
    packages: &'a str,
    setup: &'a str,
    entrypoint: &'a str,
    command: &'a str,
    user: &'a str,
}

impl<'a> Recipe<'a> {
    /// Returns the programs of upstream that the setup copies from the directory `$DIR`.
    fn programs(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let rests = self.setup.split("\"$DIR/").skip(1);
        rests.filter_map(|rest| rest.split_once('"')).map(|(program, _)| program)
    }
}

/// A layer and what the image's configuration says of it and of the layers below.
#[derive(Clone)]
struct Built {
    layers: Vec<Layer>,
    config: Value,
}

#[derive(Clone)]
struct Layer {
    /// The file name in the archive.
    file: String,
    digest: String,
}

/// Returns an error if a directory lacks programs that images need.
pub(super) fn check(peer: &Path) -> Result<()> {
    let missing: Vec<&str> =
        PROGRAMS.iter().copied().filter(|name| !peer.join(name).is_file()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    fail(format!(
        "{} lacks {}, which the test images need; build them with CGO_ENABLED=0",
        peer.display(),
        missing.join(" and ")
    ))
}

/// Writes an archive with a stand-in for each of the suite's images that the table has. An archive that was made from
/// the same table, names and programs is kept, because another one takes minutes.
pub(super) fn make(suite_images: &str, peer: &Path, directory: &Path) -> Result<PathBuf> {
    machine::install(&[("mmdebstrap", "mmdebstrap"), ("openssl", "openssl")])?;
    let mut recipes = parse(TABLE)?;
    recipes.retain(|recipe| recipe.programs().all(|program| peer.join(program).is_file()));
    let archive = directory.join("images.tar");
    let (stamp, sources) = (directory.join("images.txt"), sources(suite_images, &recipes, peer)?);
    if archive.is_file() && fs::read_to_string(&stamp).is_ok_and(|made| made == sources) {
        return Ok(archive);
    }
    let _ = fs::remove_file(&stamp);
    let directory = directory.join("images");
    let _ = fs::remove_dir_all(&directory);
    create_directory(&directory)?;
    let mut built: BTreeMap<&str, Built> = BTreeMap::new();
    let mut manifest = Vec::new();
    for recipe in &recipes {
        let below = recipe.from.and_then(|from| built.get(from)).cloned();
        let image = build(recipe, below, peer, &directory)?;
        let config = format!("{}.json", recipe.image);
        write(&directory.join(&config), image.config.to_string())?;
        let layers: Vec<&str> = image.layers.iter().map(|layer| layer.file.as_str()).collect();
        let tags = tags(suite_images, recipe.image);
        manifest.push(json!({"Config": config, "RepoTags": tags, "Layers": layers}));
        built.insert(recipe.image, image);
    }
    write(&directory.join("manifest.json"), Value::from(manifest).to_string())?;
    pass(program("tar", ["-C"]).arg(&directory).arg("-cf").arg(&archive).arg("."))?;
    fs::remove_dir_all(&directory).during("removing", directory.display())?;
    write(&stamp, sources)?;
    Ok(archive)
}

/// Returns what an archive is made from, except for the versions of Debian's packages.
fn sources(suite_images: &str, recipes: &[Recipe], peer: &Path) -> Result<String> {
    let programs = recipes.iter().flat_map(Recipe::programs).map(|name| sha256(&peer.join(name)));
    let programs = programs.collect::<Result<Vec<_>>>()?.join("\n");
    Ok(format!("{TABLE}\n{suite_images}\n{programs}\n"))
}

/// Returns the names of the suite's images whose last part without the tag is `image`. Those of other registries test
/// that an image cannot be pulled.
fn tags<'a>(suite_images: &'a str, image: &str) -> Vec<&'a str> {
    let is_named = |name: &&str| {
        let last = name.rsplit('/').next().unwrap_or_default();
        name.starts_with(REGISTRY) && last.split_once(':').is_some_and(|(last, _)| last == image)
    };
    suite_images.lines().map(str::trim).filter(is_named).collect()
}

/// Builds the image's own layer in the directory, and returns the image with the layers below.
fn build(recipe: &Recipe, below: Option<Built>, peer: &Path, directory: &Path) -> Result<Built> {
    let root = directory.join("root");
    create_directory(&root)?;
    if !recipe.packages.is_empty() {
        let include = format!("--include={}", recipe.packages.replace(' ', ","));
        let options = ["--quiet", "--mode=root", "--variant=extract", &include, RELEASE];
        pass(program("mmdebstrap", options).arg(&root))?;
    }
    let script = ["-e", "-c", recipe.setup, "setup"];
    pass(program("sh", script).arg(&root).env("DIR", peer))?;
    let file = format!("{}.tar", recipe.image);
    let mut pack = program("tar", ["--numeric-owner", "--sort=name"]);
    pack.args(UNUSED.iter().map(|path| format!("--exclude=./{path}")));
    pass(pack.arg("-C").arg(&root).arg("-cf").arg(directory.join(&file)).arg("."))?;
    fs::remove_dir_all(&root).during("removing", root.display())?;
    let digest = format!("sha256:{}", sha256(&directory.join(&file))?);
    let mut layers = below.as_ref().map_or_else(Vec::new, |below| below.layers.clone());
    layers.push(Layer { file, digest });
    let config = config(recipe, below.as_ref(), &layers)?;
    Ok(Built { layers, config })
}

fn config(recipe: &Recipe, below: Option<&Built>, layers: &[Layer]) -> Result<Value> {
    let words = |name: &str, cell: &str| {
        if cell.is_empty() {
            return Ok(below.map_or(Value::Null, |below| below.config["config"][name].clone()));
        }
        serde_json::from_str(cell).during("parsing the words of the image", recipe.image)
    };
    Ok(json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Env": [ENVIRONMENT],
            "Entrypoint": words("Entrypoint", recipe.entrypoint)?,
            "Cmd": words("Cmd", recipe.command)?,
            "User": recipe.user,
        },
        "rootfs": {
            "type": "layers",
            "diff_ids": layers.iter().map(|layer| layer.digest.as_str()).collect::<Vec<_>>(),
        },
    }))
}

/// Parses the table. An image may only be made from one in a row above.
fn parse(table: &str) -> Result<Vec<Recipe<'_>>> {
    let mut recipes: Vec<Recipe> = Vec::new();
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let cells: Vec<&str> = line.split('\t').collect();
        let [image, from, packages, setup, entrypoint, command, user] = cells[..] else {
            return fail(format!("this line of the images' table has not seven columns: {line}"));
        };
        let from = Some(from).filter(|from| *from != "-");
        if let Some(from) = from
            && recipes.iter().all(|recipe| recipe.image != from)
        {
            return fail(format!("the image {image} is made from {from}, which no row above has"));
        }
        recipes.push(Recipe { image, from, packages, setup, entrypoint, command, user });
    }
    Ok(recipes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_makes_images_from_rows_above() {
        let recipes = parse(TABLE).unwrap();
        assert!(recipes.iter().any(|recipe| recipe.image == "agnhost"));
        for recipe in &recipes {
            let below = Built { layers: Vec::new(), config: Value::Null };
            config(recipe, Some(&below), &[]).unwrap();
        }
        let copied: Vec<&str> = recipes.iter().flat_map(Recipe::programs).collect();
        assert!(PROGRAMS.iter().all(|program| copied.contains(program)));
        assert_eq!(TABLE.matches("$DIR/").count(), copied.len());
        let error = check(Path::new("/nonexistent")).unwrap_err().to_string();
        assert!(error.contains("lacks agnhost and sample-apiserver"), "{error}");
        let error = parse("a\tb\t\t\t\t\t").unwrap_err().to_string();
        assert_eq!(error, "the image a is made from b, which no row above has");
        assert!(parse("a\t-\tpackage").unwrap_err().to_string().contains("seven columns"));
    }

    #[test]
    fn inherits_words_of_image_below() {
        let row = "a\t-\t\t\t[\"/a\"]\t[\"x\"]\t\nb\ta\t\t\t\t[\"y z\"]\t7\n";
        let recipes = parse(row).unwrap();
        let layer = |digest: &str| Layer { file: String::new(), digest: digest.to_owned() };
        let layers = vec![layer("sha256:1")];
        let below = Built { config: config(&recipes[0], None, &layers).unwrap(), layers };
        let above = config(&recipes[1], Some(&below), &[layer("sha256:1"), layer("sha256:2")]);
        let above = above.unwrap();
        assert_eq!(above["config"]["Entrypoint"], json!(["/a"]));
        assert_eq!(above["config"]["Cmd"], json!(["y z"]));
        assert_eq!(above["config"]["User"], "7");
        assert_eq!(above["rootfs"]["diff_ids"], json!(["sha256:1", "sha256:2"]));
        assert_eq!(below.config["config"]["Cmd"], json!(["x"]));
    }

    #[test]
    fn tags_images_of_upstreams_registry_alone() {
        let images = "registry.k8s.io/e2e/agnhost:1\nregistry.k8s.io/e2e/agnhost:2\n\
            gcr.io/private/agnhost:1\nregistry.k8s.io/e2e/agnhost-more:1\n";
        let found = tags(images, "agnhost");
        assert_eq!(found, ["registry.k8s.io/e2e/agnhost:1", "registry.k8s.io/e2e/agnhost:2"]);
    }
}
