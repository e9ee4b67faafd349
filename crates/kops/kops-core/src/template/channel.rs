//! The functions of templates that read a channel.

use std::sync::Arc;

use gotmpl::{Function, Functions, Message};
use serde_json::Value;

use crate::{channel::Channel, version::Version};

/// The result of a function.
type Outcome = Result<Value, Message>;

/// Returns upstream's channel functions.
pub(super) fn functions(channel: &Channel, kops: &Version) -> Functions {
    let shared = Arc::new((channel.clone(), kops.clone()));
    let function = |run: fn(&Channel, &Version, &[Value]) -> Outcome| {
        let shared = Arc::clone(&shared);
        Arc::new(move |args: &[Value]| {
            run(&shared.0, &shared.1, args).map_err(|message| message.to_string().into())
        }) as Function
    };
    Functions::from([
        ("ChannelRecommendedKopsKubernetesVersion".to_owned(), function(own_version)),
        ("ChannelRecommendedKubernetesUpgradeVersion".to_owned(), function(upgrade_version)),
        ("ChannelRecommendedImage".to_owned(), function(image)),
    ])
}

fn own_version(channel: &Channel, kops: &Version, _: &[Value]) -> Outcome {
    let version = channel.kubernetes(kops).map(Value::from);
    version.ok_or_else(|| {
        format!("the channel recommends no version of Kubernetes for kOps {kops}").into()
    })
}

/// Returns the recommended version, or the given one if that is newer.
fn upgrade_version(channel: &Channel, _: &Version, args: &[Value]) -> Outcome {
    let current = version(args, 0)?;
    let Some(recommended) = channel.recommended(&current) else {
        return Err(format!("the channel has no version for Kubernetes {current}").into());
    };
    let recommended: Version = recommended.parse().map_err(invalid)?;
    Ok(recommended.max(current).to_string().into())
}

fn image(channel: &Channel, _: &Version, args: &[Value]) -> Outcome {
    let (cloud, version, architecture) = (text(args, 0)?, version(args, 1)?, text(args, 2)?);
    let image = channel.image(cloud, &version, architecture).map(Value::from);
    image.ok_or_else(|| {
        format!("the channel has no image for {cloud}, Kubernetes {version} and {architecture}")
            .into()
    })
}

fn text(args: &[Value], at: usize) -> Result<&str, Message> {
    let text = args.get(at).and_then(Value::as_str);
    text.ok_or_else(|| format!("argument {} must be a string", at + 1).into())
}

fn version(args: &[Value], at: usize) -> Result<Version, Message> {
    text(args, at)?.parse().map_err(invalid)
}

fn invalid(error: crate::error::Error) -> Message {
    error.to_string().into()
}
