//! Creates filesystems. Matching ones are reused; others are replaced only if the config allows wiping.

use ignition::spec::Filesystem;

use super::{Contents, contents};
use crate::{Error, stages::Context};

pub(super) fn apply(context: &Context, filesystem: &Filesystem) -> Result<(), Error> {
    let Some(format) = filesystem.format.as_deref().filter(|format| !format.is_empty()) else {
        return Ok(());
    };
    let device = filesystem.device.as_str();
    let found = contents(context, device, format)?;
    if filesystem.wipe_filesystem != Some(true) {
        match judge(filesystem, format, &found) {
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
    let command = making(filesystem, format);
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

fn judge(wanted: &Filesystem, format: &str, found: &Contents) -> Verdict {
    if found.kind.is_empty() {
        return if format == "none" { Verdict::Reuse } else { Verdict::Make };
    }
    let same = |wanted: &Option<String>, found: &str| {
        let plain = |text: &str| text.replace('-', "").to_ascii_lowercase();
        let wanted = wanted.as_deref().filter(|wanted| !wanted.is_empty());
        wanted.is_none_or(|wanted| plain(wanted) == plain(found))
    };
    let label = wanted.label.as_deref().filter(|label| !label.is_empty());
    let matches = found.kind == format
        && label.is_none_or(|label| label == found.label)
        && same(&wanted.uuid, &found.uuid);
    if matches {
        Verdict::Reuse
    } else {
        Verdict::Refuse(format!(
            "{} (label {:?}, UUID {:?}) exists instead of {format}; set wipeFilesystem to replace it",
            found.kind, found.label, found.uuid
        ))
    }
}

fn making(filesystem: &Filesystem, format: &str) -> Vec<String> {
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

    fn wanted(label: &str, uuid: &str) -> Filesystem {
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
        let found = |kind: &str, label: &str, uuid: &str| Contents {
            kind: kind.into(),
            label: label.into(),
            uuid: uuid.into(),
        };
        for (format, label, uuid, there, want) in [
            ("ext4", "a", "", found("", "", ""), "make"),
            ("none", "", "", found("", "", ""), "reuse"),
            ("none", "", "", found("ext4", "", ""), "refuse"),
            ("ext4", "", "", found("ext4", "any", "ab"), "reuse"),
            ("ext4", "a", "", found("ext4", "b", ""), "refuse"),
            ("vfat", "", "1234abcd", found("vfat", "", "1234-ABCD"), "reuse"),
            ("xfs", "", "", found("gpt", "", ""), "refuse"),
        ] {
            let verdict = match judge(&wanted(label, uuid), format, &there) {
                Verdict::Reuse => "reuse",
                Verdict::Make => "make",
                Verdict::Refuse(_) => "refuse",
            };
            assert_eq!(verdict, want, "{format} {label} over {there:?}");
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
            assert_eq!(making(&wanted("l", "12-34"), format).join(" "), want);
        }
    }
}
