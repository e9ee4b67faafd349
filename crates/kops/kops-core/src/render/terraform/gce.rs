//! The configuration of a cluster on GCE.

use super::settings::{MAIN, Settings};
use crate::{
    error::Error,
    gce::{operations::Resource, writer::Writer},
    model::gce::Model,
    terraform::{
        configuration::{Configuration, Keyword},
        files::{Files, GS_OBJECT, S3_OBJECT},
        hcl::Expr,
    },
};

/// Renders a model.
pub fn gce(model: &Model, settings: &Settings) -> Result<Files, Error> {
    let existing = model.resources.iter().filter_map(|(id, resource)| match resource {
        Resource::Existing(text) => Some((id, text.as_str())),
        Resource::Own(_) => None,
    });
    let mut writer = Writer { existing: existing.collect(), files: Files::new() };
    let mut configuration = Configuration::default();
    configuration.outputs.set("cluster_name", Expr::text(&settings.cluster));
    configuration.outputs.set("project", Expr::text(&model.project));
    configuration.outputs.set("region", Expr::text(&model.region));
    for (id, resource) in &model.resources {
        let Resource::Own(body) = resource else { continue };
        let block = body.terraform(&id.name, &mut writer)?;
        configuration.add(Keyword::Resource, id.kind.terraform_type(), &id.name, block)?;
    }
    let own = [("project", model.project.as_str()), ("region", model.region.as_str())];
    configuration.add_provider("google", own, &settings.provider);
    if configuration.has(S3_OBJECT) {
        let region = [("region", settings.files_region.as_str())];
        configuration.add_files_provider("aws", region, &settings.files_provider);
    }
    if configuration.has(GS_OBJECT) {
        configuration.add_files_provider("google", own, &settings.files_provider);
    }
    let mut files = writer.files;
    files.insert(MAIN.to_owned(), configuration.render()?.into_bytes());
    Ok(files)
}
