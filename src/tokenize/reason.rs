//! Why a prompt's token ids are not known.

/// Why a request's token ids are unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A message has an image, audio, video, or a part of unknown kind.
    Media,
    /// The prompt is made of vectors.
    Embeddings,
    /// The request brings a template of its own, which engines refuse unless they are told to trust it.
    RequestTemplate,
    /// The engine makes another text of such a chat than is made here.
    EngineRules,
    /// A variable for the template has the name of a parameter of the engine's renderer.
    TemplateVariables,
    /// The template refuses the conversation, fails, or reads the time of day.
    TemplateError,
    /// The model's tokenizer has no chat template.
    NoTemplate,
    /// No tokenizer is configured for the model.
    NoTokenizer,
    /// The tokenizer is still being loaded.
    Loading,
    /// The tokenizer could not be loaded.
    LoadFailed,
    /// The request is longer than is worth tokenizing.
    TooLong,
    /// Too many long texts are being tokenized already.
    TokenizerBusy,
    /// The tokenizer failed on the text.
    TokenizerError,
    /// The prompt is truncated in a way that differs between engines.
    Truncation,
    /// The engine's `/tokenize` gave no usable answer.
    Remote,
}

impl Reason {
    /// Every reason, for metrics that exist before they first count.
    pub const ALL: [Self; 15] = [
        Self::Media,
        Self::Embeddings,
        Self::RequestTemplate,
        Self::EngineRules,
        Self::TemplateVariables,
        Self::TemplateError,
        Self::NoTemplate,
        Self::NoTokenizer,
        Self::Loading,
        Self::LoadFailed,
        Self::TooLong,
        Self::TokenizerBusy,
        Self::TokenizerError,
        Self::Truncation,
        Self::Remote,
    ];

    /// The reason as a metric's label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Media => "media",
            Self::Embeddings => "prompt_embeds",
            Self::RequestTemplate => "request_template",
            Self::EngineRules => "engine_rules",
            Self::TemplateVariables => "template_variables",
            Self::TemplateError => "template_error",
            Self::NoTemplate => "no_template",
            Self::NoTokenizer => "no_tokenizer",
            Self::Loading => "loading",
            Self::LoadFailed => "load_failed",
            Self::TooLong => "too_long",
            Self::TokenizerBusy => "tokenizer_busy",
            Self::TokenizerError => "tokenizer_error",
            Self::Truncation => "truncation",
            Self::Remote => "remote_failed",
        }
    }

    /// Whether an engine's `/tokenize` may know the ids although we do not.
    pub(super) fn engine_may_know(self) -> bool {
        matches!(
            self,
            Self::TemplateError
                | Self::NoTemplate
                | Self::NoTokenizer
                | Self::Loading
                | Self::LoadFailed
                | Self::TokenizerBusy
                | Self::TokenizerError
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_distinct() {
        let labels: std::collections::HashSet<_> = Reason::ALL.iter().map(|reason| reason.label()).collect();
        assert_eq!(labels.len(), Reason::ALL.len());
    }
}
