//! Hugging Face tokenizers: `tokenizer.json` and the files beside it.

use std::fs::File;
use std::io::Read;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use super::chat::{ChatTemplate, SpecialTokens, TemplateError};
use super::checked::{Checked, LiveCheck};
use super::cuts::Cuts;
use super::fast::FastTokenizer;
use super::pipeline::Pipeline;
use super::word_ends::WordEnds;
use super::word_memory::WordMemory;
use super::{ModelTokenizer, TokenizeError, Tokenizer};
use crate::config::TemplateVariables;

/// Bytes that a tokenizer's file may have; the largest in use have about 35 MB.
const FILE_BYTES_MAX: u64 = 512 << 20;

/// Where a model's tokenizer lies.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenizerFiles {
    /// `tokenizer.json`, or the folder that has it. `tokenizer_config.json` and `chat_template.jinja` are read from the
    /// same folder if they are there.
    pub tokenizer: PathBuf,
    /// A Jinja file that replaces the model's chat template, as vLLM's `--chat-template` does.
    pub chat_template: Option<PathBuf>,
    /// The template's variables where a request does not set them.
    pub chat_template_kwargs: Option<TemplateVariables>,
    /// The model's context length, if known.
    pub model_tokens_max: Option<u32>,
    /// One prompt in so many is compared with the reference while serving. `None`: none is, and the reference does not stay
    /// in memory.
    pub check_every: Option<NonZeroU32>,
}

/// Why a tokenizer could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file cannot be read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A file is larger than any tokenizer's.
    #[error("`{}` has more than {limit} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The most that is read.
        limit: u64,
    },
    /// `tokenizer.json` is no tokenizer that the library knows.
    #[error("`{}` is no tokenizer: {reason}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// The library's words.
        reason: String,
    },
    /// `tokenizer_config.json` cannot be understood.
    #[error("`{}` is no tokenizer configuration", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
    /// The chat template does not compile.
    #[error("the chat template does not compile")]
    Template(#[from] TemplateError),
}

/// The reference implementation, from a `tokenizer.json`.
pub struct HfTokenizer(tokenizers::Tokenizer);

impl HfTokenizer {
    /// Reads a `tokenizer.json`. Slow: 0.3 s and 130 MB for a vocabulary of 150 000.
    ///
    /// # Errors
    /// [`LoadError`] if the file cannot be read or is no tokenizer.
    pub fn from_file(path: &Path) -> Result<Self, LoadError> {
        Self::from_json(path, &read(path)?)
    }

    fn from_json(path: &Path, json: &str) -> Result<Self, LoadError> {
        let refuse =
            |error: tokenizers::Error| LoadError::Tokenizer { path: path.to_owned(), reason: error.to_string() };
        let mut tokenizer: tokenizers::Tokenizer = json.parse().map_err(refuse)?;
        // What the file says of truncation and padding is meant for training; engines set their own.
        tokenizer.with_truncation(None).map_err(refuse)?;
        tokenizer.with_padding(None);
        Ok(Self(tokenizer))
    }
}

impl Tokenizer for HfTokenizer {
    fn encode(&self, text: &str, special: bool, ids: &mut Vec<u32>) -> Result<(), TokenizeError> {
        let encoding = self.0.encode_fast(text, special).map_err(|_| TokenizeError)?;
        ids.extend_from_slice(encoding.get_ids());
        Ok(())
    }
}

/// Loads a tokenizer with its chat template: the fast one, after it was compared with the reference, or else that. Blocks
/// for a second or two, in which both are in memory.
///
/// The template is the explicit file, else `chat_template.jinja`, else the one in `tokenizer_config.json`, in the order of
/// Hugging Face's loader; none of them is no error.
///
/// # Errors
/// [`LoadError`] if a file that is there cannot be used.
pub fn load(files: &TokenizerFiles) -> Result<ModelTokenizer, LoadError> {
    let tokenizer = compared(Parts::read(files)?, files.check_every);
    Ok(tokenizer.with_model_tokens_max(files.model_tokens_max))
}

/// Whether [`load`] would, without what takes it long.
///
/// # Errors
/// As [`load`].
pub fn check(files: &TokenizerFiles) -> Result<(), LoadError> {
    Parts::read(files).map(|_| ())
}

/// What the files say, as far as it can be wrong.
struct Parts {
    path: PathBuf,
    json: String,
    reference: HfTokenizer,
    turn_end: Option<String>,
    template: Option<ChatTemplate>,
}

impl Parts {
    fn read(files: &TokenizerFiles) -> Result<Self, LoadError> {
        let given = &files.tokenizer;
        let path = if given.is_dir() { given.join("tokenizer.json") } else { given.clone() };
        let json = read(&path)?;
        let folder = path.parent().unwrap_or(Path::new("."));
        let config = Config::read(&folder.join("tokenizer_config.json"))?;
        let specials = config.special_tokens();
        let turn_end = specials.0.iter().find(|(name, _)| *name == "eos_token").map(|(_, token)| token.clone());
        let beside = folder.join("chat_template.jinja");
        let template = match (&files.chat_template, config.chat_template) {
            (Some(path), _) => Some(ChatTemplate::with_special_tokens(&read(path)?, specials)?),
            (None, _) if beside.is_file() => Some(ChatTemplate::with_special_tokens(&read(&beside)?, specials)?),
            (None, Some(Templates::One(source))) => Some(ChatTemplate::with_special_tokens(&source, specials)?),
            (None, Some(Templates::Named(list))) => {
                let pairs: Vec<(String, String)> = list.into_iter().map(|named| (named.name, named.template)).collect();
                ChatTemplate::named(&pairs, specials)?
            }
            (None, None) => None,
        };
        let template = match &files.chat_template_kwargs {
            Some(variables) => template.map(|template| template.with_variables(variables)),
            None => template,
        };
        let reference = HfTokenizer::from_json(&path, &json)?;
        Ok(Self { path, json, reference, turn_end, template })
    }
}

/// Both tokenizers of a file, compared.
fn compared(parts: Parts, check_every: Option<NonZeroU32>) -> ModelTokenizer {
    let Parts { path, json, reference, turn_end, template } = parts;
    let json = json.as_str();
    let pipeline = Pipeline::read(json).ok();
    let fast = FastTokenizer::read(json).map(|fast| remembering(fast, pipeline.as_ref().and_then(WordEnds::of)));
    let has_fast = fast.is_some();
    let cuts = pipeline.as_ref().map_or_else(Cuts::none, |pipeline| Cuts::of(pipeline, turn_end.as_deref()));
    let added: Vec<&str> =
        pipeline.iter().flat_map(|pipeline| &pipeline.added_tokens).map(|token| &*token.content).collect();
    let checked = Checked::new(fast, Box::new(reference), &cuts, &added);
    let course = Arc::clone(checked.course());
    let (path, slow, whole) = (path.display(), course.reference_only(), course.whole() || !cuts.any());
    if slow || whole {
        tracing::warn!(
            tokenizer = %path,
            known = has_fast,
            fast = !slow,
            cuts = !whole,
            "not all that makes tokenizing fast is exact for this tokenizer, and is left out"
        );
    }
    let checked = Arc::new(if check_every.is_none() { checked.without_reference() } else { checked });
    let every = check_every.filter(|_| checked.can_compare());
    let live = every.and_then(|every| LiveCheck::start(Arc::clone(&checked), every));
    let tokenizer = ModelTokenizer::new(checked, template).with_course(cuts, course, live);
    // Three short texts are encoded now and not with the first request.
    tokenizer.frame();
    tokenizer
}

/// The tokenizer with a memory of words, where it is known how they end.
fn remembering(fast: FastTokenizer, ends: Option<WordEnds>) -> Box<dyn Tokenizer> {
    match ends {
        Some(ends) => Box::new(WordMemory::new(fast, ends)),
        None => Box::new(fast),
    }
}

/// The parts of `tokenizer_config.json` that templates need.
#[derive(Default, Deserialize)]
struct Config {
    chat_template: Option<Templates>,
    bos_token: Option<Token>,
    eos_token: Option<Token>,
    unk_token: Option<Token>,
    sep_token: Option<Token>,
    pad_token: Option<Token>,
    cls_token: Option<Token>,
    mask_token: Option<Token>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Token {
    Text(String),
    Added { content: String },
}

impl Config {
    fn read(path: &Path) -> Result<Self, LoadError> {
        if !path.is_file() {
            return Ok(Self::default());
        }
        serde_json::from_str(&read(path)?).map_err(|source| LoadError::Config { path: path.to_owned(), source })
    }

    fn special_tokens(&self) -> SpecialTokens {
        let tokens = [
            ("bos_token", &self.bos_token),
            ("eos_token", &self.eos_token),
            ("unk_token", &self.unk_token),
            ("sep_token", &self.sep_token),
            ("pad_token", &self.pad_token),
            ("cls_token", &self.cls_token),
            ("mask_token", &self.mask_token),
        ];
        let given = tokens.into_iter().filter_map(|(name, token)| match token.as_ref()? {
            Token::Text(content) | Token::Added { content } => Some((name, content.clone())),
        });
        SpecialTokens(given.collect())
    }
}

fn read(path: &Path) -> Result<String, LoadError> {
    let fail = |source| LoadError::Read { path: path.to_owned(), source };
    let mut text = String::new();
    let read = File::open(path).map_err(fail)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(fail)?;
    if u64::try_from(read).is_ok_and(|read| read <= FILE_BYTES_MAX) {
        Ok(text)
    } else {
        Err(LoadError::TooLarge { path: path.to_owned(), limit: FILE_BYTES_MAX })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_may_name_one_template_or_several_and_tokens_in_both_forms() {
        let json = r#"{"chat_template":[{"name":"default","template":"d"},{"name":"tool_use","template":"t"}],
            "bos_token":{"content":"<s>","lstrip":false},"eos_token":"</s>","pad_token":null,"other":1}"#;
        let config: Config = serde_json::from_str(json).unwrap();
        let expected = [("bos_token", "<s>".to_owned()), ("eos_token", "</s>".to_owned())];
        assert_eq!(config.special_tokens().0, expected);
        assert!(matches!(config.chat_template, Some(Templates::Named(list)) if list.len() == 2));
        let config: Config = serde_json::from_str(r#"{"chat_template":"x"}"#).unwrap();
        assert!(matches!(config.chat_template, Some(Templates::One(source)) if source == "x"));
    }

    #[test]
    fn a_missing_tokenizer_is_named() {
        let files = TokenizerFiles {
            tokenizer: "/nowhere/tokenizer.json".into(),
            chat_template: None,
            chat_template_kwargs: None,
            model_tokens_max: None,
            check_every: None,
        };
        let error = load(&files).err().unwrap();
        assert_eq!(error.to_string(), "cannot read `/nowhere/tokenizer.json`");
    }
}
