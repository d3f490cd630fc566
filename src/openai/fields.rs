//! The routed keys of a body, each as it lies there.

use serde::Deserialize;

use super::scan::{self, Scanner};
use super::{DEPTH_MAX, Prompt, Raw};

/// The routed keys as they lie in the body. Unknown keys are skipped, a key that occurs twice is an error.
#[derive(Default, Deserialize)]
pub(super) struct Fields<'a> {
    #[serde(borrow)]
    pub(super) model: Option<Raw<'a>>,
    pub(super) lora_path: Option<Raw<'a>>,
    pub(super) prompt: Option<Raw<'a>>,
    pub(super) prompt_embeds: Option<Raw<'a>>,
    pub(super) messages: Option<Raw<'a>>,
    pub(super) tools: Option<Raw<'a>>,
    pub(super) tool_choice: Option<Raw<'a>>,
    pub(super) documents: Option<Raw<'a>>,
    pub(super) chat_template: Option<Raw<'a>>,
    pub(super) chat_template_kwargs: Option<Raw<'a>>,
    pub(super) add_generation_prompt: Option<Raw<'a>>,
    pub(super) continue_final_message: Option<Raw<'a>>,
    pub(super) reasoning_effort: Option<Raw<'a>>,
    pub(super) add_special_tokens: Option<Raw<'a>>,
    pub(super) truncate_prompt_tokens: Option<Raw<'a>>,
    pub(super) truncation_side: Option<Raw<'a>>,
    pub(super) cache_salt: Option<Raw<'a>>,
    pub(super) extra_key: Option<Raw<'a>>,
    pub(super) stream: Option<Raw<'a>>,
    pub(super) stream_options: Option<Raw<'a>>,
    pub(super) n: Option<Raw<'a>>,
    pub(super) max_tokens: Option<Raw<'a>>,
    pub(super) max_completion_tokens: Option<Raw<'a>>,
    pub(super) priority: Option<Raw<'a>>,
    pub(super) user: Option<Raw<'a>>,
    pub(super) prompt_cache_key: Option<Raw<'a>>,
    pub(super) echo: Option<Raw<'a>>,
    pub(super) logprobs: Option<Raw<'a>>,
    pub(super) prompt_logprobs: Option<Raw<'a>>,
    pub(super) prompt_logprob_token_ids: Option<Raw<'a>>,
    /// The elements of `messages`, where the scan has told them apart.
    #[serde(skip)]
    pub(super) apart: Option<Vec<Raw<'a>>>,
    /// What `prompt` is, where it is a list of ids that the scan has read or counted.
    #[serde(skip)]
    pub(super) ids: Option<Prompt<'static>>,
}

/// How much of a prompt is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// All of it.
    Whole,
    /// How large it is.
    Size,
}

impl<'a> Fields<'a> {
    /// Reads them in one pass; `None` where anything is wrong with the body, or might be.
    pub(super) fn scan(body: &'a [u8], items_max: usize, reading: Reading) -> Option<Self> {
        let mut fields = Self::default();
        let mut seen: Vec<&'static str> = Vec::with_capacity(16);
        scan::members(body, DEPTH_MAX, |name, scanner| {
            let Some((name, _)) = fields.named(name) else { return scanner.value().map(drop) };
            if seen.contains(&name) {
                return None;
            }
            seen.push(name);
            let raw = fields.read(name, scanner, items_max, reading)?;
            if raw.get() != "null" {
                *fields.named(name)?.1 = Some(raw);
            }
            Some(())
        })?;
        Some(fields)
    }

    /// One value; of `messages` and `prompt` what is in it, too.
    fn read(&mut self, name: &str, scanner: &mut Scanner<'a>, items_max: usize, reading: Reading) -> Option<Raw<'a>> {
        let start = scanner.place();
        match name {
            "messages" if scanner.at_array() => self.apart = Some(scanner.elements(items_max)?),
            "prompt" if scanner.at_ids() && reading == Reading::Whole => {
                // Most ids have four or five digits, and a comma.
                let mut ids = Vec::with_capacity(scanner.left() / 5);
                scanner.ids(|some| ids.extend_from_slice(some))?;
                self.ids = Some(Prompt::Ids(vec![ids]));
            }
            "prompt" if scanner.at_ids() => {
                self.ids = Some(Prompt::Unread { prompts: 1, tokens: Some(scanner.count_ids()?) });
            }
            _ => return scanner.value(),
        }
        scanner.since(start)
    }

    /// The place of a routed key.
    fn named(&mut self, name: &str) -> Option<(&'static str, &mut Option<Raw<'a>>)> {
        Some(match name {
            "model" => ("model", &mut self.model),
            "lora_path" => ("lora_path", &mut self.lora_path),
            "prompt" => ("prompt", &mut self.prompt),
            "prompt_embeds" => ("prompt_embeds", &mut self.prompt_embeds),
            "messages" => ("messages", &mut self.messages),
            "tools" => ("tools", &mut self.tools),
            "tool_choice" => ("tool_choice", &mut self.tool_choice),
            "documents" => ("documents", &mut self.documents),
            "chat_template" => ("chat_template", &mut self.chat_template),
            "chat_template_kwargs" => ("chat_template_kwargs", &mut self.chat_template_kwargs),
            "add_generation_prompt" => ("add_generation_prompt", &mut self.add_generation_prompt),
            "continue_final_message" => ("continue_final_message", &mut self.continue_final_message),
            "reasoning_effort" => ("reasoning_effort", &mut self.reasoning_effort),
            "add_special_tokens" => ("add_special_tokens", &mut self.add_special_tokens),
            "truncate_prompt_tokens" => ("truncate_prompt_tokens", &mut self.truncate_prompt_tokens),
            "truncation_side" => ("truncation_side", &mut self.truncation_side),
            "cache_salt" => ("cache_salt", &mut self.cache_salt),
            "extra_key" => ("extra_key", &mut self.extra_key),
            "stream" => ("stream", &mut self.stream),
            "stream_options" => ("stream_options", &mut self.stream_options),
            "n" => ("n", &mut self.n),
            "max_tokens" => ("max_tokens", &mut self.max_tokens),
            "max_completion_tokens" => ("max_completion_tokens", &mut self.max_completion_tokens),
            "priority" => ("priority", &mut self.priority),
            "user" => ("user", &mut self.user),
            "prompt_cache_key" => ("prompt_cache_key", &mut self.prompt_cache_key),
            "echo" => ("echo", &mut self.echo),
            "logprobs" => ("logprobs", &mut self.logprobs),
            "prompt_logprobs" => ("prompt_logprobs", &mut self.prompt_logprobs),
            "prompt_logprob_token_ids" => ("prompt_logprob_token_ids", &mut self.prompt_logprob_token_ids),
            _ => return None,
        })
    }
}
