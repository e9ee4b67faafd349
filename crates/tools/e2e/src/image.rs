//! Packs programs of this machine as images, without a registry, and imports them into a cluster's nodes.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::BufWriter,
    os::unix::fs::PermissionsExt,
    path::Path,
};

use oci::{Entry, Image};

use crate::{
    cluster::Cluster,
    process::run,
    programs::{binary, busybox},
};

/// The applets of busybox that images have.
const APPLETS: [&str; 30] = [
    "sh", "httpd", "wget", "nslookup", "tar", "cat", "echo", "sleep", "mkdir", "ls", "hostname",
    "id", "env", "test", "true", "false", "touch", "rm", "nc", "stat", "ps", "seq", "date",
    "mount", "ip", "head", "wc", "sort", "grep", "dd",
];

/// An image that is packed from files of this machine.
pub struct HostImage(Image);

impl HostImage {
    /// Creates an image without files.
    pub fn new(name: &str, entrypoint: &[&str]) -> Self {
        let entrypoint = entrypoint.iter().map(ToString::to_string).collect();
        let env =
            vec!["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()];
        let entries = BTreeMap::from([("/tmp".to_owned(), Entry::Directory { mode: 0o1777 })]);
        Self(Image { name: name.to_owned(), entrypoint, env, entries, ..Image::default() })
    }

    /// Sets the user and group that run the entrypoint, as numbers.
    pub fn user(mut self, user: &str) -> Self {
        user.clone_into(&mut self.0.user);
        self
    }

    /// Adds busybox, with links for the applets that tests use.
    pub fn shell(mut self) -> Self {
        let busybox = busybox();
        self = self.program(Path::new(&busybox), "/bin/busybox");
        for applet in APPLETS {
            let link = Entry::Link { target: "/bin/busybox".to_owned() };
            self.0.entries.entry(format!("/bin/{applet}")).or_insert(link);
        }
        self
    }

    /// Adds a program at path `at`, with its shared libraries.
    #[track_caller]
    pub fn program(mut self, path: &Path, at: &str) -> Self {
        let entries = oci::program(path, at);
        self.0.entries.extend(entries.unwrap_or_else(|e| panic!("packing {}: {e}", self.0.name)));
        self
    }

    /// Adds a symbolic link.
    pub fn link(mut self, at: &str, target: &str) -> Self {
        self.0.entries.insert(at.to_owned(), Entry::Link { target: target.to_owned() });
        self
    }

    /// Adds a file with this content.
    pub fn text(mut self, at: &str, content: &str) -> Self {
        let entry = Entry::Bytes { content: content.as_bytes().to_vec(), mode: 0o644 };
        self.0.entries.insert(at.to_owned(), entry);
        self
    }

    /// Adds a file of this machine, or all files below a directory, at their own paths. Links become files.
    #[track_caller]
    pub fn files(mut self, path: &str) -> Self {
        let about = fs::metadata(path).unwrap_or_else(|e| panic!("reading {path}: {e}"));
        if about.is_dir() {
            let entries = fs::read_dir(path).unwrap_or_else(|e| panic!("reading {path}: {e}"));
            for entry in entries {
                let entry = entry.unwrap_or_else(|e| panic!("reading {path}: {e}"));
                self = self.files(&entry.path().display().to_string());
            }
            return self;
        }
        let mode = about.permissions().mode() & 0o777;
        self.0.entries.insert(path.to_owned(), Entry::File { source: path.into(), mode });
        self
    }
}

impl Cluster {
    /// Imports an image into the container runtimes of all nodes.
    #[track_caller]
    pub fn import(&self, image: &HostImage) {
        let archive = self.directory.join("image.tar");
        let written = File::create(&archive).map_err(|e| e.to_string()).and_then(|file| {
            let images = std::slice::from_ref(&image.0);
            oci::write_archive(images, BufWriter::new(file)).map_err(|e| e.to_string())
        });
        written.unwrap_or_else(|e| panic!("writing {}: {e}", archive.display()));
        let words = ["images", "import", &archive.display().to_string()];
        let mut command = self.namespace.command(&binary().display().to_string(), &words);
        command.arg("--name").arg(&self.name).arg("--root").arg(self.root());
        run(command, b"").ok();
    }

    /// Builds the image `box:1`, which only sleeps, and two versions of the test application `app`. The application is
    /// a web server whose page shows its version and its Pod's name. A shell is its first process, because httpd as the
    /// first process ignores SIGTERM for the whole grace period.
    #[track_caller]
    pub fn build_images(&self) {
        for version in ["1", "2"] {
            let script = format!(
                "mkdir -p /www; echo \"version {version} on $(hostname)\" >/www/index.html; trap exit TERM; \
                 httpd -f -v -p 8080 -h /www & wait"
            );
            self.build_image(&format!("app:{version}"), &["sh", "-c", &script]);
        }
        self.build_image("box:1", &["sh", "-c", "trap exit TERM; while :; do sleep 1; done"]);
    }

    /// Builds an image of busybox, with links for the applets that tests use.
    #[track_caller]
    pub fn build_image(&self, name: &str, entrypoint: &[&str]) {
        let links = APPLETS.map(|applet| format!("/bin/{applet}")).join(",");
        let busybox = busybox();
        let words = ["images", "build", name, "--binary", &busybox, "--path", "/bin/busybox"];
        let mut command = self.namespace.command(&binary().display().to_string(), &words);
        command.arg("--link").arg(&links).arg("--name").arg(&self.name);
        command.arg("--root").arg(self.root()).arg("--").args(entrypoint);
        run(command, b"").ok();
    }
}
