//! Extracts upstream's descriptions of types and their members from the source of the `k8s-openapi` crate.
//!
//! They are upstream's texts, so this repository does not contain them. That crate is a dependency anyway, and contains
//! them as literals of JSON schemas.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    let source = source_of("k8s-openapi")?.join("src/v1_36");
    println!("cargo::rerun-if-changed={}", source.display());
    println!("cargo::rerun-if-changed=build.rs");
    let mut lines = BTreeMap::new();
    for file in rust_files(&source)? {
        gather(&fs::read_to_string(&file)?, &mut lines);
    }
    if lines.len() < 3000 {
        return Err(
            format!("only {} descriptions found in {}", lines.len(), source.display()).into()
        );
    }
    let out = PathBuf::from(std::env::var("OUT_DIR")?).join("descriptions.z");
    let mut writer =
        flate2::write::ZlibEncoder::new(fs::File::create(out)?, flate2::Compression::best());
    for ((name, member), text) in lines {
        writeln!(writer, "{name}\t{member}\t{text}")?;
    }
    writer.finish()?;
    Ok(())
}

/// Returns the directory in which cargo unpacked a dependency.
///
/// The query uses a package with only this dependency. For the whole workspace, cargo requires all crates of all
/// targets and tests, but a build downloads only those that it needs.
fn source_of(package: &str) -> Result<PathBuf, Box<dyn Error>> {
    let here = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?);
    let lock = locked_by(&here).ok_or("no Cargo.lock in this folder or above")?;
    let asking = PathBuf::from(std::env::var("OUT_DIR")?).join("asking");
    fs::create_dir_all(asking.join("src"))?;
    fs::write(asking.join("src/lib.rs"), "")?;
    let locked = fs::read_to_string(&lock)?;
    let version = version_of(package, &locked)
        .ok_or_else(|| format!("{package} is not in {}", lock.display()))?;
    let manifest = asking.join("Cargo.toml");
    let dependency = format!("[workspace]\n[dependencies]\n{package} = \"={version}\"\n");
    fs::write(&manifest, format!("[package]\nname = \"asking\"\n{dependency}"))?;
    fs::write(asking.join("Cargo.lock"), locked)?;
    println!("cargo::rerun-if-changed={}", lock.display());

    // Cargo searches its configuration, which may name a mirror, from the working directory upwards.
    let output = Command::new(std::env::var("CARGO")?)
        .current_dir(here)
        .args(["metadata", "--format-version", "1", "--offline", "--filter-platform"])
        .args([&std::env::var("TARGET")?, "--manifest-path"])
        .arg(manifest)
        .output()?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    let found =
        packages.iter().find(|p| p["name"] == package).and_then(|p| p["manifest_path"].as_str());
    let folder = found.and_then(|path| Path::new(path).parent());
    Ok(folder.ok_or_else(|| format!("{package} is not among the dependencies"))?.to_owned())
}

fn locked_by(folder: &Path) -> Option<PathBuf> {
    folder.ancestors().map(|folder| folder.join("Cargo.lock")).find(|lock| lock.is_file())
}

fn version_of<'a>(package: &str, locked: &'a str) -> Option<&'a str> {
    let (_, entry) = locked.split_once(&format!("name = \"{package}\"\nversion = \""))?;
    entry.split('"').next()
}

fn rust_files(root: &Path) -> std::io::Result<Vec<PathBuf>> {
    let (mut found, mut folders) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path);
            }
        }
    }
    Ok(found)
}

/// Extracts the descriptions. The literals have a fixed form: the type's description is indented by 12 spaces, a
/// member's name by 16, and its description by 20. A description is a key of a literal, or is inserted into a
/// reference.
fn gather(source: &str, lines: &mut BTreeMap<(String, String), String>) {
    let Some(name) =
        source.lines().find_map(|line| line.strip_prefix("// Generated from definition "))
    else {
        return;
    };
    let mut member = String::new();
    for line in source.lines() {
        let text = line.trim_start();
        let depth = line.len() - text.len();
        if depth == 16
            && let Some(rest) = text.strip_prefix('"')
            && let Some(name) = rest.strip_suffix("\": {").or_else(|| rest.strip_suffix("\": ({"))
        {
            name.clone_into(&mut member);
        }
        let literal = || text.strip_prefix("\"description\": \"")?.strip_suffix("\",");
        let inserted =
            || text.split_once(".insert(\"description\".into(), \"")?.1.strip_suffix("\".into());");
        if let Some(text) = literal().or_else(inserted).filter(|_| depth == 12 || depth == 20) {
            let member = if depth == 12 { String::new() } else { member.clone() };
            // The text stays escaped, as in JSON, so that a description is one line.
            lines.insert((name.to_owned(), member), text.to_owned());
        }
    }
}
