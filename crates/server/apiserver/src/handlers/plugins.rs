//! Configuration of admission plugins from `--admission-control-config-file`.

use std::{collections::BTreeMap, error::Error, path::Path, sync::Arc};

use admission::{Chain, PLUGINS, UnknownPlugin};
use api_config::{Strictness, versioned};
use api_meta::{FieldError, Path as Field};
use serde::Deserialize;
use serde_json::Value;

use super::image_policy::ImagePolicy;
use crate::{config::Config, outbound::users::WebhookUsers};

/// The error for an invalid admission configuration, which prevents the start.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    #[error("unable to read admission control configuration: {0}")]
    File(#[from] api_config::Error),
    #[error(transparent)]
    Plugin(#[from] UnknownPlugin),
}

/// The configuration document of each plugin.
pub(crate) struct Plugins(BTreeMap<String, Value>);

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WebhookAdmission {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    kube_config_file: String,
    static_manifests_dir: String,
}

impl Plugins {
    pub(crate) fn load(config: &Config) -> Result<Self, AdmissionError> {
        let Some(file) = &config.admission_file else { return Ok(Self(BTreeMap::new())) };
        let plugins = api_config::admission_plugins(file)?;
        for name in plugins.keys().filter(|name| PLUGINS.iter().all(|p| p.name != name.as_str())) {
            tracing::warn!(file = %file.display(), name, "the admission configuration names an unknown plugin");
        }
        Ok(Self(plugins))
    }

    /// Builds the admission chain with these configurations.
    pub(crate) fn chain(&self, config: &Config) -> Result<Chain, AdmissionError> {
        const OF_FEATURE: &str = "NodeDeclaredFeatureValidator";
        let (mut enable, mut disable) =
            (config.enable_admission.clone(), config.disable_admission.clone());
        if !config.features.is_enabled("NodeDeclaredFeatures") {
            enable.retain(|name| name != OF_FEATURE);
            disable.push(OF_FEATURE.to_owned());
        }
        let chain = Chain::configured(&enable, &disable, &self.0)?;
        Ok(chain.with_default_tolerations(config.default_tolerations))
    }

    /// Builds a plugin's state from its document, if the plugin is enabled.
    fn build<T, E: Into<Box<dyn Error + Send + Sync>>>(
        &self,
        chain: &Chain,
        name: &str,
        make: impl FnOnce(&Value) -> Result<T, E>,
    ) -> Result<Option<T>, AdmissionError> {
        if !chain.is_on(name) {
            return Ok(None);
        }
        let plugin = make(self.0.get(name).unwrap_or(&Value::Null));
        let plugin = plugin.map_err(|error| UnknownPlugin::Configuration {
            name: name.to_owned(),
            source: error.into(),
        })?;
        Ok(Some(plugin))
    }

    pub(crate) fn image_policy(
        &self,
        chain: &Chain,
    ) -> Result<Option<ImagePolicy>, AdmissionError> {
        self.build(chain, "ImagePolicyWebhook", ImagePolicy::new)
    }

    /// Loads the credentials for mutating and for validating webhooks.
    pub(crate) fn webhook_users(
        &self,
        chain: &Chain,
    ) -> Result<[Option<Arc<WebhookUsers>>; 2], AdmissionError> {
        let users = |name| self.build(chain, name, webhook_users).map(Option::flatten);
        Ok([users("MutatingAdmissionWebhook")?, users("ValidatingAdmissionWebhook")?])
    }
}

fn webhook_users(
    document: &Value,
) -> Result<Option<Arc<WebhookUsers>>, Box<dyn Error + Send + Sync>> {
    if document.is_null() {
        return Ok(None);
    }
    let kind = match document["kind"].as_str() {
        Some("WebhookAdmission") => "WebhookAdmission",
        _ => "WebhookAdmissionConfiguration",
    };
    let served: &[&str] = match kind {
        "WebhookAdmission" => &["apiserver.config.k8s.io/v1alpha1"],
        _ => &["apiserver.config.k8s.io/v1"],
    };
    let read: WebhookAdmission = versioned(kind, document.clone(), served, Strictness::Refuse)?;
    let (file, field) = (read.kube_config_file.as_str(), Field::new("kubeConfigFile"));
    if !read.static_manifests_dir.is_empty() {
        let words = "staticManifestsDir requires the ManifestBasedAdmissionControlConfig feature \
                     gate to be enabled";
        let error = FieldError::forbidden(&Field::new("staticManifestsDir"), words);
        return Err(error.to_string().into());
    }
    if file.is_empty() {
        return Ok(None);
    }
    if !file.starts_with('/') {
        let must = "must be an absolute file path";
        return Err(FieldError::invalid(&field, file, must).to_string().into());
    }
    Ok(Some(Arc::new(WebhookUsers::load(Path::new(file))?)))
}
