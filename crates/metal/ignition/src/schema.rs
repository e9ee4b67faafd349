//! The schema of Butane configs, in Butane's names. Ignition uses the same names in camel case.

/// The shape of a value.
#[derive(Debug)]
pub(crate) enum Shape {
    Text,
    Int,
    Bool,
    List(&'static Shape),
    Object(&'static [(&'static str, Shape)]),
    /// Arbitrary options, as a list of names and values in source order. Texts are quoted.
    Options,
    /// Contents: a source, or fields that are converted to one.
    Resource,
    /// A systemd unit or drop-in, whose contents may come from a file.
    Unit(&'static [(&'static str, Shape)]),
    /// A user, whose keys may come from files.
    User(&'static [(&'static str, Shape)]),
}

use Shape::{Bool, Int, List, Object, Resource, Text, Unit, User};

pub(crate) const HEADERS: Shape = List(&Object(&[("name", Text), ("value", Text)]));
const TEXTS: Shape = List(&Text);

pub(crate) const RESOURCE: &[(&str, Shape)] = &[
    ("source", Text),
    ("inline", Text),
    ("local", Text),
    ("compression", Text),
    ("http_headers", HEADERS),
    ("verification", Object(&[("hash", Text)])),
];

const OWNER: Shape = Object(&[("id", Int), ("name", Text)]);

const PARTITION: Shape = Object(&[
    ("label", Text),
    ("number", Int),
    ("size_mib", Int),
    ("start_mib", Int),
    ("type_guid", Text),
    ("guid", Text),
    ("wipe_partition_entry", Bool),
    ("should_exist", Bool),
    ("resize", Bool),
]);

const TANG: Shape = Object(&[("url", Text), ("thumbprint", Text), ("advertisement", Text)]);

const CEX: Shape = Object(&[("enabled", Bool)]);

const LUKS: Shape = Object(&[
    ("name", Text),
    ("device", Text),
    ("label", Text),
    ("uuid", Text),
    ("key_file", Resource),
    ("wipe_volume", Bool),
    ("options", TEXTS),
    ("discard", Bool),
    ("open_options", TEXTS),
    ("cex", CEX),
    (
        "clevis",
        Object(&[
            ("custom", Object(&[("pin", Text), ("config", Text), ("needs_network", Bool)])),
            ("tang", List(&TANG)),
            ("threshold", Int),
            ("tpm2", Bool),
        ]),
    ),
]);

const STORAGE: Shape = Object(&[
    (
        "disks",
        List(&Object(&[("device", Text), ("wipe_table", Bool), ("partitions", List(&PARTITION))])),
    ),
    (
        "raid",
        List(&Object(&[
            ("name", Text),
            ("level", Text),
            ("devices", TEXTS),
            ("spares", Int),
            ("options", TEXTS),
        ])),
    ),
    ("luks", List(&LUKS)),
    (
        "filesystems",
        List(&Object(&[
            ("device", Text),
            ("format", Text),
            ("path", Text),
            ("wipe_filesystem", Bool),
            ("label", Text),
            ("uuid", Text),
            ("options", TEXTS),
            ("mount_options", TEXTS),
            ("with_mount_unit", Bool),
        ])),
    ),
    (
        "files",
        List(&Object(&[
            ("path", Text),
            ("overwrite", Bool),
            ("contents", Resource),
            ("append", List(&Resource)),
            ("mode", Int),
            ("user", OWNER),
            ("group", OWNER),
        ])),
    ),
    (
        "directories",
        List(&Object(&[
            ("path", Text),
            ("overwrite", Bool),
            ("mode", Int),
            ("user", OWNER),
            ("group", OWNER),
        ])),
    ),
    (
        "links",
        List(&Object(&[
            ("path", Text),
            ("overwrite", Bool),
            ("user", OWNER),
            ("group", OWNER),
            ("target", Text),
            ("hard", Bool),
        ])),
    ),
    (
        "trees",
        List(&Object(&[
            ("local", Text),
            ("path", Text),
            ("file_mode", Int),
            ("dir_mode", Int),
            ("user", OWNER),
            ("group", OWNER),
        ])),
    ),
]);

const PASSWD: Shape = Object(&[
    (
        "users",
        List(&User(&[
            ("name", Text),
            ("password_hash", Text),
            ("ssh_authorized_keys", TEXTS),
            ("ssh_authorized_keys_local", TEXTS),
            ("uid", Int),
            ("gecos", Text),
            ("home_dir", Text),
            ("no_create_home", Bool),
            ("primary_group", Text),
            ("groups", TEXTS),
            ("no_user_group", Bool),
            ("no_log_init", Bool),
            ("shell", Text),
            ("should_exist", Bool),
            ("system", Bool),
        ])),
    ),
    (
        "groups",
        List(&Object(&[
            ("name", Text),
            ("gid", Int),
            ("password_hash", Text),
            ("should_exist", Bool),
            ("system", Bool),
        ])),
    ),
]);

const DROPIN: Shape = Unit(&[("name", Text), ("contents", Text), ("contents_local", Text)]);

pub(crate) const BUTANE: &[(&str, Shape)] = &[
    ("variant", Text),
    ("version", Text),
    (
        "ignition",
        Object(&[
            ("config", Object(&[("merge", List(&Resource)), ("replace", Resource)])),
            ("timeouts", Object(&[("http_response_headers", Int), ("http_total", Int)])),
            (
                "security",
                Object(&[("tls", Object(&[("certificate_authorities", List(&Resource))]))]),
            ),
            ("proxy", Object(&[("http_proxy", Text), ("https_proxy", Text), ("no_proxy", TEXTS)])),
        ]),
    ),
    ("kernel_arguments", Object(&[("should_exist", TEXTS), ("should_not_exist", TEXTS)])),
    ("passwd", PASSWD),
    ("storage", STORAGE),
    (
        "systemd",
        Object(&[(
            "units",
            List(&Unit(&[
                ("name", Text),
                ("enabled", Bool),
                ("mask", Bool),
                ("contents", Text),
                ("contents_local", Text),
                ("dropins", List(&DROPIN)),
            ])),
        )]),
    ),
    (
        "boot_device",
        Object(&[
            ("layout", Text),
            (
                "luks",
                Object(&[
                    ("cex", CEX),
                    ("device", Text),
                    ("discard", Bool),
                    ("tang", List(&TANG)),
                    ("threshold", Int),
                    ("tpm2", Bool),
                ]),
            ),
            ("mirror", Object(&[("devices", TEXTS)])),
        ]),
    ),
    ("grub", Object(&[("users", List(&Object(&[("name", Text), ("password_hash", Text)])))])),
];

/// Converts a field name of Butane to Ignition's.
pub(crate) fn camel(name: &str) -> String {
    let mut words = name.split('_');
    let mut out = words.next().unwrap_or_default().to_owned();
    for word in words {
        match word {
            "mib" => out.push_str("MiB"),
            word => {
                let (first, rest) = word.split_at(word.len().min(1));
                out.push_str(&first.to_ascii_uppercase());
                out.push_str(rest);
            }
        }
    }
    out
}

/// Converts a path of Ignition to Butane's names.
pub(crate) fn snake(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for letter in path.replace("MiB", "Mib").chars() {
        if letter.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(letter.to_ascii_lowercase());
    }
    out
}

/// Returns the Ignition version that a variant's version is translated to.
pub(crate) fn target(variant: &str, version: &str) -> Option<&'static str> {
    Some(match (variant, version) {
        ("fcos", "1.0.0") => "3.0.0",
        ("fcos", "1.1.0") => "3.1.0",
        ("fcos", "1.2.0" | "1.3.0") => "3.2.0",
        ("fcos", "1.4.0") | ("flatcar", "1.0.0") => "3.3.0",
        ("fcos", "1.5.0") | ("flatcar", "1.1.0") => "3.4.0",
        ("fcos", "1.6.0") => "3.5.0",
        ("fcos", "1.7.0") => "3.6.0",
        _ => return None,
    })
}
