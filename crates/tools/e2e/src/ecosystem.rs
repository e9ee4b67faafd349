//! Programs of other projects, which tests run as Pods. `cargo xtask ecosystem --programs DIR` sets their directory.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use crate::{cluster::Cluster, image::HostImage};

/// The files that each test needs. `cargo xtask ecosystem` reads the same table.
const TABLE: &str = include_str!("../ecosystem.tsv");

/// A program in the directory and its image.
struct Program {
    file: &'static str,
    /// The last part of the image's name, without the tag.
    image: &'static str,
    /// The path in the image.
    at: &'static str,
    user: &'static str,
    tools: &'static str,
}

/// The programs and manifests of a test.
pub struct Programs {
    directory: PathBuf,
    programs: Vec<Program>,
}

impl Programs {
    /// Returns the programs of a test of the table. Prints a message and returns `None` if the variable
    /// `WINDLASS_ECOSYSTEM`, the directory of all programs, is not set.
    #[track_caller]
    pub fn of(test: &str) -> Option<Self> {
        let Some(directory) = std::env::var_os("WINDLASS_ECOSYSTEM").map(PathBuf::from) else {
            eprintln!(
                "skipped: WINDLASS_ECOSYSTEM is not set; run `cargo xtask ecosystem --programs DIR`"
            );
            return None;
        };
        let mut programs = Vec::new();
        for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
            let cells: Vec<&str> = line.split('\t').collect();
            if cells.first() != Some(&test) {
                continue;
            }
            let path = directory.join(cells[1]);
            assert!(path.is_file(), "{} does not exist", path.display());
            if let [_, file, image, at, user, tools] = cells[..] {
                programs.push(Program { file, image, at, user, tools });
            }
        }
        Some(Self { directory, programs })
    }

    /// Returns the path of a file in the directory.
    pub fn path(&self, file: &str) -> PathBuf {
        self.directory.join(file)
    }

    /// Returns a manifest whose images are in the cluster's nodes. Images that the table knows are packed under the
    /// manifest's own names. No image is pulled, because there is no registry.
    #[track_caller]
    pub fn manifest(&self, cluster: &Cluster, file: &str) -> String {
        let path = self.path(file);
        let text =
            fs::read_to_string(&path).unwrap_or_else(|e| panic!("reading {}: {e}", path.display()));
        self.import_images(cluster, &text);
        text.replace("imagePullPolicy: Always", "imagePullPolicy: IfNotPresent")
    }

    /// Packs the images that a manifest names and imports them.
    #[track_caller]
    pub fn import_images(&self, cluster: &Cluster, manifest: &str) {
        let images: BTreeSet<&str> = manifest.split(is_delimiter).collect();
        for name in images {
            let program = self.programs.iter().find(|program| short(name) == Some(program.image));
            if let Some(program) = program {
                cluster.import(&self.image(name, program));
            }
        }
    }

    fn image(&self, name: &str, program: &Program) -> HostImage {
        let mut image = HostImage::new(name, &[program.at])
            .shell()
            .program(&self.path(program.file), program.at)
            .text("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n");
        if program.user != "-" {
            image = image.user(program.user);
        }
        for tool in program.tools.split(',').filter(|tool| *tool != "-") {
            image = image.program(&installed(tool), &format!("/usr/local/bin/{tool}"));
        }
        image
    }
}

/// Reports whether a character ends an image's name in a manifest, where it is a field or an argument.
fn is_delimiter(c: char) -> bool {
    c.is_whitespace() || ['"', '\'', ',', '=', '[', ']'].contains(&c)
}

/// Returns the last part of an image's name without its tag; `None` for a word without a tag.
fn short(image: &str) -> Option<&str> {
    let last = image.rsplit('/').next()?;
    last.split_once(':').map(|(name, _)| name)
}

/// Returns the path of an installed program.
fn installed(program: &str) -> PathBuf {
    let directories = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"];
    let mut paths = directories.iter().map(|directory| Path::new(directory).join(program));
    paths
        .find(|path| path.is_file())
        .unwrap_or_else(|| panic!("{program} is not installed; run `cargo xtask ecosystem`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_images_of_manifests_by_their_last_part() {
        let text =
            "image: \"registry.k8s.io:443/sig/csi-attacher:v4\"\nargs: [--image=a/tool:1, 'b/c:2']";
        let found: Vec<&str> = text.split(is_delimiter).filter_map(short).collect();
        assert_eq!(found, ["image", "csi-attacher", "args", "tool", "c"]);
        assert_eq!(short("https://example.com:443/tool"), None);
    }

    #[test]
    fn table_has_two_or_six_columns() {
        for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
            assert!([2, 6].contains(&line.split('\t').count()), "{line}");
        }
    }
}
