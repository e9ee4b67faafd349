//! Unlocking of encrypted volumes by Tang servers, the machine's TPM, or a threshold of them.

use serde_json::{Value, json};

use crate::{
    error::ConfigError,
    spec::{Clevis, Custom, Tang},
};

/// The arguments of `clevis luks bind`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The name of the pin.
    pub pin: String,
    /// The configuration of the pin, as JSON.
    pub config: String,
}

impl Clevis {
    /// Returns `true` if anything besides a key file unlocks the volume.
    pub fn is_wanted(&self) -> bool {
        self != &Self::default()
    }

    /// Returns `true` if unlocking requires the network.
    pub fn needs_network(&self) -> bool {
        !self.tang.is_empty() || self.custom.needs_network == Some(true)
    }

    /// Returns the policy. Servers and TPM are shares of one secret; `threshold` of them are required, by default one.
    pub fn policy(&self) -> Policy {
        if let Some(pin) = set(&self.custom.pin) {
            let config = self.custom.config.clone().unwrap_or_default();
            return Policy { pin: pin.to_owned(), config };
        }
        let mut pins = json!({});
        if !self.tang.is_empty() {
            pins["tang"] = self.tang.iter().map(server).collect();
        }
        if self.tpm2 == Some(true) {
            pins["tpm2"] = json!({});
        }
        let threshold = self.threshold.filter(|threshold| *threshold > 0).unwrap_or(1);
        let config = json!({ "pins": pins, "t": threshold }).to_string();
        Policy { pin: "sss".into(), config }
    }
}

fn server(tang: &Tang) -> Value {
    let mut out = json!({ "url": tang.url });
    if let Some(thumbprint) = set(&tang.thumbprint) {
        out["thp"] = thumbprint.into();
    }
    // A given advertisement is not fetched, because the server may be unreachable from this network.
    if let Some(advertisement) = set(&tang.advertisement) {
        out["adv"] = serde_json::from_str(advertisement).unwrap_or_default();
    }
    out
}

fn set(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|text| !text.is_empty())
}

/// Validates the fields, with upstream's messages.
pub(crate) fn validate(path: &str, clevis: &Clevis) -> Result<(), ConfigError> {
    let fail =
        |place: &str, reason: &str| Err(ConfigError::invalid(format!("{path}.{place}"), reason));
    let Custom { pin, config, needs_network } = &clevis.custom;
    let (pin, config) = (set(pin), set(config));
    if pin.is_some() || config.is_some() || *needs_network == Some(true) {
        // Only a few pins are valid before 3.6, which `versions` checks.
        if pin.is_none() {
            return fail("custom.pin", "missing required custom clevis pin");
        }
        if config.is_none() {
            return fail("custom.config", "missing required custom clevis config");
        }
        let others = !clevis.tang.is_empty()
            || clevis.tpm2 == Some(true)
            || clevis.threshold.is_some_and(|threshold| threshold > 0);
        if others {
            let reason = "cannot use custom clevis config with tpm2, tang, or threshold";
            return Err(ConfigError::invalid(path, reason));
        }
    }
    for (i, tang) in clevis.tang.iter().enumerate() {
        let scheme = tang.url.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase());
        if !matches!(scheme.as_deref(), Some("http" | "https")) {
            return fail(&format!("tang.{i}.url"), "invalid url scheme");
        }
        if set(&tang.thumbprint).is_none() {
            return fail(&format!("tang.{i}.thumbprint"), "thumbprint is required");
        }
        let wrong = |text: &str| serde_json::from_str::<Value>(text).is_err();
        if set(&tang.advertisement).is_some_and(wrong) {
            return fail(&format!("tang.{i}.advertisement"), "advertisement is not valid JSON");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: Value) -> Clevis {
        let config = json!({ "ignition": { "version": "3.4.0" }, "storage": { "luks": [
            { "name": "a", "device": "/dev/a", "clevis": value },
        ] } });
        crate::typed(&config).unwrap().storage.luks.remove(0).clevis
    }

    #[test]
    fn policies() {
        for (value, pin, config, network) in [
            (json!({ "tpm2": true }), "sss", r#"{"pins":{"tpm2":{}},"t":1}"#, false),
            (
                json!({ "tpm2": true, "threshold": 2, "tang": [
                    { "url": "http://a", "thumbprint": "x" },
                    { "url": "http://b", "thumbprint": "y", "advertisement": "{\"payload\": \"p\"}" },
                ] }),
                "sss",
                r#"{"pins":{"tang":[{"thp":"x","url":"http://a"},{"adv":{"payload":"p"},"thp":"y","url":"http://b"}],"tpm2":{}},"t":2}"#,
                true,
            ),
            (
                json!({ "custom": { "pin": "tpm2", "config": "{\"pcr_ids\":\"7\"}" } }),
                "tpm2",
                r#"{"pcr_ids":"7"}"#,
                false,
            ),
            (
                json!({ "custom": { "pin": "tang", "config": "{}", "needsNetwork": true } }),
                "tang",
                "{}",
                true,
            ),
        ] {
            let clevis = of(value.clone());
            let want = Policy { pin: pin.into(), config: config.into() };
            assert_eq!(clevis.policy(), want, "{value}");
            assert_eq!(clevis.needs_network(), network, "{value}");
        }
        assert!(!of(json!({})).is_wanted() && of(json!({ "tpm2": true })).is_wanted());
    }

    #[test]
    fn rejects_invalid_clevis_configs() {
        let tang = json!([{ "url": "http://a", "thumbprint": "x" }]);
        for (value, want) in [
            (json!({ "tang": tang.clone(), "tpm2": true, "threshold": 2 }), ""),
            (json!({ "tang": [{ "url": "ftp://a", "thumbprint": "x" }] }), "invalid url scheme"),
            (
                json!({ "tang": [{ "url": "http://a" }] }),
                "tang.0.thumbprint: thumbprint is required",
            ),
            (
                json!({ "tang": [{ "url": "http://a", "thumbprint": "x", "advertisement": "{" }] }),
                "advertisement is not valid JSON",
            ),
            (json!({ "custom": { "config": "{}" } }), "missing required custom clevis pin"),
            (json!({ "custom": { "pin": "yubikey", "config": "{}" } }), ""),
            (json!({ "custom": { "pin": "sss" } }), "missing required custom clevis config"),
            (
                json!({ "custom": { "pin": "sss", "config": "{}" }, "tang": tang }),
                "cannot use custom clevis config with tpm2, tang, or threshold",
            ),
        ] {
            let said = validate("clevis", &of(value.clone())).err().map(|error| error.to_string());
            let said = said.unwrap_or_default();
            assert!(said.contains(want) && said.is_empty() == want.is_empty(), "{value}: {said}");
        }
    }
}
