//! Renders boot scripts, metadata and templates of a group and its profile.

use std::{fmt::Write, sync::Arc};

use gotmpl::{MissingKey, Template};
use serde_json::{Map, Value, json};

use super::{
    nodes::node_name,
    secrets::Secrets,
    store::{Boot, Group, Pattern},
};
use crate::labels::Labels;

/// The first script, which makes iPXE request its script with the machine's labels.
pub(crate) const BOOT_IPXE: &str = "#!ipxe\nchain ipxe?uuid=${uuid}&mac=${mac:hexhyp}&domain=${domain}&hostname=${hostname}\
    &serial=${serial}&arch=${buildarch:uristring}\n";

pub(crate) fn ipxe(boot: &Boot) -> String {
    let mut out = format!("#!ipxe\nkernel {}{}\n", boot.kernel, args(boot));
    for initrd in &boot.initrd {
        out.extend(["initrd ", initrd, "\n"]);
    }
    out + "boot\n"
}

fn args(boot: &Boot) -> String {
    boot.args.iter().fold(String::new(), |out, arg| out + " " + arg)
}

pub(crate) fn grub(boot: &Boot) -> String {
    let mut out = "default=0\nfallback=1\ntimeout=1\n".to_owned();
    let initrds = boot.initrd.iter().fold(String::new(), |out, name| out + " \"" + name + "\"");
    for (title, suffix) in [("EFI", "efi"), ("BIOS", "")] {
        // Writing to a String cannot fail.
        let _ = write!(
            out,
            "menuentry \"CoreOS ({title})\" {{\necho \"Loading kernel\"\nlinux{suffix} \"{}\"{}\n\
             echo \"Loading initrd\"\ninitrd{suffix} {initrds}\n}}\n",
            boot.kernel,
            args(boot)
        );
    }
    out
}

/// The label that an installed machine sends if its disk did not boot.
pub(crate) const NO_DISK: &str = "windlass_disk";

/// The BIOS disks to try. A mirror boots from any disk that is left.
const DRIVES: std::ops::Range<u8> = 0x80..0x84;

/// The default boot loader that UEFI firmware starts from a disk.
const LOADER: &str = "/EFI/BOOT/BOOTX64.EFI";

/// Returns a script that boots an installed machine from its disk. UEFI firmware continues with its boot order only
/// after a failure; a success opens its menu. If no BIOS disk boots, the script reports it, and the machine is
/// installed again.
pub(crate) fn ipxe_disk(query: &str) -> String {
    let labels = if query.is_empty() { String::new() } else { format!("{query}&") };
    let drives: String =
        DRIVES.map(|drive| format!("sanboot --no-describe --drive {drive:#x} ||\n")).collect();
    format!(
        "#!ipxe\niseq ${{platform}} efi && exit 1 ||\n{drives}\
         echo No disk boots: installing again\nchain ipxe?{labels}{NO_DISK}=none\n"
    )
}

/// Returns the same script for GRUB, which cannot return from a disk. A return to UEFI firmware opens its menu, so the
/// script starts the disk's boot loader itself.
pub(crate) fn grub_disk(_query: &str) -> String {
    let drives: Vec<String> = (0..DRIVES.len()).map(|number| format!("hd{number}")).collect();
    format!(
        "default=0\ntimeout=1\nmenuentry \"Local disk\" {{\nif [ \"$grub_platform\" = \"efi\" ]; then\n\
         if search --no-floppy --file --set=root {LOADER}; then chainloader {LOADER}; boot; fi\nexit\nfi\n\
         for disk in {}; do\nset root=$disk\nif chainloader +1; then boot; fi\ndone\n}}\n",
        drives.join(" ")
    )
}

/// Returns the data of templates: metadata, overridden by selectors, overridden by the request.
pub(crate) fn data(group: &Group, labels: &Labels, raw_query: &str) -> Map<String, Value> {
    let mut data = group.metadata.clone().unwrap_or_default();
    for (key, pattern) in &group.selector {
        let value = match pattern {
            Pattern::Exact(value) => value.clone(),
            // A selector with several values yields the machine's own value.
            _ => labels.get(key).cloned().unwrap_or_default(),
        };
        data.insert(key.to_lowercase(), value.into());
    }
    let mut request = json!({ "query": labels, "raw_query": raw_query });
    if let Some(name) = labels.get("mac").and_then(|mac| node_name(group, mac)) {
        request["node_name"] = name.into();
    }
    data.insert("request".into(), request);
    data
}

/// Renders `OUTER_INNER=value` lines without lists and nulls. They are sorted, so the output is deterministic.
pub(crate) fn metadata(data: &Map<String, Value>) -> String {
    fn lines(out: &mut String, prefix: &str, data: &Map<String, Value>) {
        for (key, value) in data {
            let name = format!("{prefix}{key}");
            match value {
                Value::Object(inner) => lines(out, &format!("{name}_"), inner),
                Value::Null | Value::Array(_) => {}
                value => {
                    let _ = writeln!(out, "{}={}", name.to_uppercase(), scalar(value));
                }
            }
        }
    }
    let mut out = String::new();
    lines(&mut out, "", data);
    out
}

/// Formats a value as Go does, where numbers are floats.
fn scalar(value: &Value) -> String {
    let template = Template::parse("value", "{{.}}");
    template.and_then(|template| template.execute(value)).unwrap_or_default()
}

pub(crate) fn template(
    name: &str,
    text: &str,
    data: &Map<String, Value>,
    secrets: &Arc<Secrets>,
) -> Result<String, gotmpl::Error> {
    Template::parse_with(name, text, secrets.functions())?
        .missing_key(MissingKey::Error)
        .execute(&Value::Object(data.clone()))
}

/// The failure to render a boot setting.
pub(crate) struct SettingError {
    /// The name of the setting.
    pub(crate) setting: String,
    pub(crate) source: gotmpl::Error,
}

/// Renders templates in the profile's boot settings. Matchbox has no templates there, but no kernel argument contains
/// `{{`.
pub(crate) fn boot(
    boot: &Boot,
    profile: &str,
    data: &Map<String, Value>,
    secrets: &Arc<Secrets>,
) -> Result<Boot, SettingError> {
    let one = |setting: String, text: &String| {
        if text.contains("{{") {
            template(profile, text, data, secrets)
                .map_err(|source| SettingError { setting, source })
        } else {
            Ok(text.clone())
        }
    };
    let all = |name: &str, texts: &[String]| {
        let named = texts.iter().enumerate();
        named.map(|(n, text)| one(format!("{name}[{n}]"), text)).collect::<Result<_, _>>()
    };
    Ok(Boot {
        kernel: one("kernel".into(), &boot.kernel)?,
        initrd: all("initrd", &boot.initrd)?,
        args: all("args", &boot.args)?,
    })
}
