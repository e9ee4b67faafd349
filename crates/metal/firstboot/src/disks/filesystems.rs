//! Creates filesystems. Matching ones are reused; others are replaced only if the config allows wiping.

use ignition::spec::Filesystem;

use super::contents::{Contents, probe};
use crate::{context::Context, error::Error};

pub(super) fn apply(context: &Context, filesystem: &Filesystem) -> Result<(), Error> {
    let Some(format) = filesystem.format.as_deref().filter(|format| !format.is_empty()) else {
        return Ok(());
    };
    let device = filesystem.device.as_str();
    let contents = probe(context, device, format)?;
    if filesystem.wipe_filesystem != Some(true) {
        match judge(filesystem, format, &contents) {
            Verdict::Reuse => {
                tracing::info!(device, format, "the filesystem needs no change");
                return Ok(());
            }
            Verdict::Make => {}
            Verdict::Refuse(reason) => {
                return Err(Error::Refused { what: format!("filesystem on {device}"), reason });
            }
        }
    }
    context.programs.must(&["wipefs", "--all", device])?;
    if format == "none" {
        return Ok(());
    }
    tracing::info!(device, format, "making a filesystem");
    let command = mkfs_command(filesystem, format);
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    context.programs.must(&command)?;
    Ok(())
}

#[derive(Debug, PartialEq)]
enum Verdict {
    Reuse,
    Make,
    Refuse(String),
}

fn judge(filesystem: &Filesystem, format: &str, contents: &Contents) -> Verdict {
    if contents.kind.is_empty() {
        return if format == "none" { Verdict::Reuse } else { Verdict::Make };
    }
    let plain = |text: &str| text.replace('-', "").to_ascii_lowercase();
    let label = filesystem.label.as_deref().filter(|label| !label.is_empty());
    let uuid = filesystem.uuid.as_deref().filter(|uuid| !uuid.is_empty());
    let matches = contents.kind == format
        && label.is_none_or(|label| label == contents.label)
        && uuid.is_none_or(|uuid| plain(uuid) == plain(&contents.uuid));
    if matches {
        Verdict::Reuse
    } else {
        Verdict::Refuse(format!(
            "{} (label {:?}, UUID {:?}) exists instead of {format}; set wipeFilesystem to replace it",
            contents.kind, contents.label, contents.uuid
        ))
    }
}

fn mkfs_command(filesystem: &Filesystem, format: &str) -> Vec<String> {
    let (program, label, uuid): (&[&str], _, _) = match format {
        "btrfs" => (&["mkfs.btrfs", "--force"], "-L", "-U"),
        "xfs" => (&["mkfs.xfs", "-f"], "-L", "-m"),
        "vfat" => (&["mkfs.fat", "-I"], "-n", "-i"),
        "swap" => (&["mkswap"], "-L", "-U"),
        _ => (&["mkfs.ext4", "-q", "-F"], "-L", "-U"),
    };
    let mut out: Vec<String> = program.iter().map(|word| (*word).to_owned()).collect();
    out.extend(filesystem.options.iter().cloned());
    if let Some(text) = filesystem.uuid.as_deref().filter(|text| !text.is_empty()) {
        let text = match format {
            "xfs" => format!("uuid={text}"),
            "vfat" => text.replace('-', ""),
            _ => text.to_owned(),
        };
        out.extend([uuid.to_owned(), text]);
    }
    if let Some(text) = filesystem.label.as_deref().filter(|text| !text.is_empty()) {
        out.extend([label.to_owned(), text.to_owned()]);
    }
    out.push(filesystem.device.clone());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filesystem(label: &str, uuid: &str) -> Filesystem {
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Filesystem {
            device: "/dev/x".into(),
            label: text(label),
            uuid: text(uuid),
            ..Filesystem::default()
        }
    }

    #[test]
    fn reuses_makes_or_rejects_filesystem() {
        let contents = |kind: &str, label: &str, uuid: &str| Contents {
            kind: kind.into(),
            label: label.into(),
            uuid: uuid.into(),
        };
        for (format, label, uuid, existing, want) in [
            ("ext4", "a", "", contents("", "", ""), "make"),
            ("none", "", "", contents("", "", ""), "reuse"),
            ("none", "", "", contents("ext4", "", ""), "refuse"),
            ("ext4", "", "", contents("ext4", "any", "ab"), "reuse"),
            ("ext4", "a", "", contents("ext4", "b", ""), "refuse"),
            ("vfat", "", "1234abcd", contents("vfat", "", "1234-ABCD"), "reuse"),
            ("xfs", "", "", contents("gpt", "", ""), "refuse"),
        ] {
            let verdict = match judge(&filesystem(label, uuid), format, &existing) {
                Verdict::Reuse => "reuse",
                Verdict::Make => "make",
                Verdict::Refuse(_) => "refuse",
            };
            assert_eq!(verdict, want, "{format} {label} over {existing:?}");
        }
    }

    #[test]
    fn passes_label_and_uuid_to_mkfs() {
        for (format, want) in [
            ("ext4", "mkfs.ext4 -q -F -U 12-34 -L l /dev/x"),
            ("xfs", "mkfs.xfs -f -m uuid=12-34 -L l /dev/x"),
            ("btrfs", "mkfs.btrfs --force -U 12-34 -L l /dev/x"),
            ("vfat", "mkfs.fat -I -i 1234 -n l /dev/x"),
            ("swap", "mkswap -U 12-34 -L l /dev/x"),
        ] {
            assert_eq!(mkfs_command(&filesystem("l", "12-34"), format).join(" "), want);
        }
    }
}
