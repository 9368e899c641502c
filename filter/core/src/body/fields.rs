//! Collects the fields of a request body from the JSON reader's callbacks.

use std::sync::Arc;

use penstock_wire::Api;
use penstock_wire::limits::NAME_BYTES_MAX;

use super::sequences::{COUNT_BYTES_MAX, Choices, Prompts, Sequences};
use super::{Body, is_of_one_engine};
use crate::json::{Container, JsonString, Literal, Visitor};
use crate::limits::{ATTACHMENT_BYTES_MAX, KEY_BYTES_MAX, TOKEN_ID_BYTES};
use crate::prefix_hashes::PrefixHasher;

/// The reason for which a body is refused although it is JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    NotAnObject,
    TwoModels,
    BadModel,
}

/// The meaning of a top-level key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Role {
    #[default]
    Other,
    Model,
    Stream,
    Background,
    MaxTokens,
    Prompt,
    /// A prompt that may also be a list of token ids.
    PromptOrIds(Prompts),
    /// A prompt that is no text: its embeddings.
    PromptEmbeds,
    /// The number of choices.
    Choices(Choices),
}

impl Role {
    fn from_key(key: &str) -> Self {
        match key {
            "model" => Self::Model,
            "stream" => Self::Stream,
            "background" => Self::Background,
            "max_tokens" | "max_completion_tokens" | "max_output_tokens" => Self::MaxTokens,
            "messages" | "system" | "instructions" | "suffix" | "tools" | "functions" => Self::Prompt,
            "prompt" => Self::PromptOrIds(Prompts::Prompt),
            "input" => Self::PromptOrIds(Prompts::Input),
            "prompt_embeds" => Self::PromptEmbeds,
            "n" => Self::Choices(Choices::Returned),
            "best_of" => Self::Choices(Choices::Computed),
            _ => Self::Other,
        }
    }

    /// The meaning of a key of an engine's own API.
    fn from_any_key(key: &str) -> Self {
        match key {
            "max_new_tokens" | "n_predict" => Self::MaxTokens,
            "text" | "inputs" | "input_ids" => Self::PromptOrIds(Prompts::Input),
            _ => Self::from_key(key),
        }
    }

    /// The prompts that a list under the key holds.
    const fn prompts(self) -> Option<Prompts> {
        match self {
            Self::PromptOrIds(prompts) => Some(prompts),
            Self::PromptEmbeds => Some(Prompts::Embeds),
            Self::Other
            | Self::Model
            | Self::Stream
            | Self::Background
            | Self::MaxTokens
            | Self::Prompt
            | Self::Choices(_) => None,
        }
    }
}

/// How much of a string counts as prompt text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Share {
    #[default]
    Nothing,
    Whole,
    /// At most `ATTACHMENT_BYTES_MAX` bytes.
    Capped,
}

impl Share {
    /// The share of the value under `key`, in an object with the share `self`.
    fn of_member(self, key: &str) -> Self {
        match (self, key) {
            (Self::Nothing, _) => Self::Nothing,
            (
                Self::Whole | Self::Capped,
                "role" | "type" | "id" | "tool_call_id" | "call_id" | "status" | "detail" | "format"
                | "media_type" | "mime_type" | "cache_control" | "file_id",
            ) => Self::Nothing,
            (
                Self::Whole,
                "url" | "image_url" | "image" | "source" | "data" | "input_audio" | "audio" | "audio_url"
                | "video_url" | "file" | "file_data" | "file_url" | "b64_json" | "encrypted_content"
                | "image_data" | "audio_data" | "video_data" | "images" | "multimodal_data",
            )
            | (Self::Capped, _) => Self::Capped,
            (Self::Whole, _) => Self::Whole,
        }
    }

    /// The number of bytes of a string that count.
    fn limit(self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Whole => u64::MAX,
            Self::Capped => ATTACHMENT_BYTES_MAX,
        }
    }
}

/// The key inside the value of `key` that an identity's key names, like `user_id` in `metadata.user_id`.
fn child<'a>(known: &'a str, key: &str) -> Option<&'a str> {
    known.strip_prefix(key)?.strip_prefix('.')
}

#[derive(Debug, Default)]
pub(super) struct Fields {
    body_keys: Arc<[String]>,
    body: Body,
    has_model: bool,
    sequences: Sequences,
    depth: u32,
    /// The role of the top-level key that was read last.
    role: Role,
    /// The index of the key that was read last in `body_keys`, and the depth of its object.
    body_key: Option<(usize, u32)>,
    /// One bit for each of the first `body_keys` that is a key in the value of the top-level key that was read last.
    nested_keys: u64,
    /// The share of the next value.
    share: Share,
    /// The shares of the open containers, one bit each.
    whole: u128,
    capped: u128,
    /// Every text counts as a prompt, whatever its key.
    any_api: bool,
    /// The next value is the output limit, or the number of choices, among the options of an engine's own API.
    nested_limit: bool,
    nested_choices: bool,
    hasher: Option<PrefixHasher>,
    /// Bytes of the current string that were hashed.
    hashed: u64,
}

impl Fields {
    pub(super) fn new(body_keys: Arc<[String]>) -> Self {
        let body = Body { identities: vec![None; body_keys.len()], ..Body::default() };
        Self { body_keys, body, ..Self::default() }
    }

    pub(super) fn set_api(&mut self, api: Api) {
        self.sequences.set_api(api);
        self.any_api = is_of_one_engine(api);
    }

    pub(super) const fn reads_any_api(&self) -> bool {
        self.any_api
    }

    pub(super) fn hash_prefixes(&mut self) {
        self.hasher = Some(PrefixHasher::new());
    }

    pub(super) fn into_body(self) -> Body {
        let prefix_hashes = self.hasher.map(PrefixHasher::into_hashes);
        Body {
            prefix_hashes: prefix_hashes.unwrap_or_default(),
            sequences: self.sequences.count(),
            ..self.body
        }
    }

    /// The bit of the innermost open container.
    fn bit(&self) -> u128 {
        1_u128.wrapping_shl(self.depth.saturating_sub(1))
    }

    fn container_share(&self) -> Share {
        match (self.whole & self.bit() != 0, self.capped & self.bit() != 0) {
            (true, _) => Share::Whole,
            (false, true) => Share::Capped,
            (false, false) => Share::Nothing,
        }
    }

    /// Refuses a number or literal where the body needs an object or a string.
    fn check_scalar(&self) -> Result<(), Stop> {
        match self.depth {
            0 => Err(Stop::NotAnObject),
            1 if self.role == Role::Model => Err(Stop::BadModel),
            _ => Ok(()),
        }
    }

    /// The identity that a string is, whose key was read last.
    fn identity(&mut self) -> Option<&mut Option<String>> {
        let (index, depth) = self.body_key?;
        if depth == self.depth { self.body.identities.get_mut(index) } else { None }
    }

    /// A top-level key begins: the last of several equal keys counts, as in every JSON parser, also for the identities inside its value.
    fn begin_identities(&mut self, key: &str) {
        self.body_key = None;
        self.nested_keys = 0;
        for (index, (known, identity)) in self.body_keys.iter().zip(&mut self.body.identities).enumerate() {
            if known == key {
                self.body_key = Some((index, self.depth));
                *identity = None;
            } else if child(known, key).is_some() {
                let bit = u32::try_from(index).ok().and_then(|index| 1_u64.checked_shl(index));
                self.nested_keys |= bit.unwrap_or(0);
                *identity = None;
            }
        }
    }

    /// A key inside the value of a top-level key begins.
    fn begin_nested_identity(&mut self, key: &str) {
        self.body_key = None;
        let mut keys = self.nested_keys;
        while keys != 0 {
            let index = usize::try_from(keys.trailing_zeros()).unwrap_or(usize::MAX);
            keys &= keys.wrapping_sub(1);
            let known = self.body_keys.get(index).and_then(|known| known.split_once('.'));
            if known.is_some_and(|(_, known)| known == key) {
                self.body_key = Some((index, self.depth));
                if let Some(identity) = self.body.identities.get_mut(index) {
                    *identity = None;
                }
            }
        }
    }

    /// A string or a container begins inside a top-level value. Directly inside a list of prompts it is one of them.
    fn count_item(&mut self) {
        if self.depth == 2 {
            self.sequences.count_item();
        }
    }

    fn count_prompt(&mut self, bytes: u64) {
        self.body.prompt_bytes = self.body.prompt_bytes.saturating_add(bytes);
    }
}

impl Visitor for Fields {
    type Stop = Stop;

    fn key_limit(&self) -> usize {
        if self.depth == 1 {
            // One byte more than the longest body key, so that a longer key can't be mistaken for it.
            NAME_BYTES_MAX.saturating_add(1)
        } else {
            KEY_BYTES_MAX
        }
    }

    fn string_limit(&self) -> usize {
        let is_identity = self.body_key.is_some_and(|(_, depth)| depth == self.depth);
        if is_identity || self.depth == 1 && self.role == Role::Model {
            NAME_BYTES_MAX
        } else if self.depth == 1 && matches!(self.role, Role::Choices(_)) {
            COUNT_BYTES_MAX
        } else {
            0
        }
    }

    fn wants_string_bytes(&self) -> bool {
        self.hasher.is_some() && self.depth > 0 && self.share != Share::Nothing
    }

    fn string_bytes(&mut self, bytes: &[u8]) {
        let Some(hasher) = &mut self.hasher else {
            return;
        };
        let room = self.share.limit().saturating_sub(self.hashed);
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let (counted, _) = bytes.split_at_checked(room).unwrap_or((bytes, &[]));
        hasher.write(counted);
        let counted = u64::try_from(counted.len()).unwrap_or(u64::MAX);
        self.hashed = self.hashed.saturating_add(counted);
    }

    fn key(&mut self, key: JsonString<'_>) -> Result<(), Stop> {
        if self.depth > 1 {
            let key = if key.is_cut() { "" } else { key.kept };
            self.share = self.container_share().of_member(key);
            // The options may be a list, one for each prompt.
            let is_option = self.any_api && self.depth <= 3;
            self.nested_limit =
                is_option && matches!(key, "max_new_tokens" | "max_tokens" | "n_predict" | "num_predict");
            self.nested_choices = is_option && key == "n";
            if self.depth == 2 && self.nested_keys != 0 {
                self.begin_nested_identity(key);
            }
            return Ok(());
        }
        (self.nested_limit, self.nested_choices) = (false, false);
        self.role = if self.any_api { Role::from_any_key(key.kept) } else { Role::from_key(key.kept) };
        self.body.has_stream_options |= key.kept == "stream_options";
        self.share = match self.role {
            Role::Prompt | Role::PromptOrIds(_) => Share::Whole,
            Role::Other if self.any_api => Share::Whole.of_member(key.kept),
            Role::Other
            | Role::Model
            | Role::Stream
            | Role::Background
            | Role::MaxTokens
            | Role::PromptEmbeds
            | Role::Choices(_) => Share::Nothing,
        };
        self.begin_identities(key.kept);
        match self.role {
            Role::Model if self.has_model => return Err(Stop::TwoModels),
            Role::Model => self.has_model = true,
            Role::Stream => self.body.stream = false,
            Role::Background => self.body.is_background = false,
            // Engines have different keys for prompts and choices, and each engine reads its own. So none resets what another has counted.
            Role::Choices(_) | Role::PromptOrIds(_) | Role::PromptEmbeds if self.any_api => {}
            Role::Choices(choices) => self.sequences.set_choices(choices, None),
            Role::PromptOrIds(prompts) => self.sequences.key(prompts),
            Role::PromptEmbeds => self.sequences.key(Prompts::Embeds),
            Role::Other | Role::MaxTokens | Role::Prompt => {}
        }
        Ok(())
    }

    fn string(&mut self, value: JsonString<'_>) -> Result<(), Stop> {
        if self.depth == 0 {
            return Err(Stop::NotAnObject);
        }
        if self.share != Share::Nothing
            && let Some(hasher) = &mut self.hasher
        {
            hasher.end_string();
            self.hashed = 0;
        }
        self.count_prompt(value.bytes.min(self.share.limit()));
        if !value.kept.is_empty()
            && let Some(identity) = self.identity()
        {
            *identity = Some(value.kept.to_owned());
        }
        if self.depth > 1 {
            self.count_item();
            return Ok(());
        }
        if let Role::Choices(choices) = self.role {
            self.sequences.set_choices_text(choices, value);
        }
        if self.role == Role::Model {
            if value.is_cut() {
                return Err(Stop::BadModel);
            }
            value.kept.clone_into(&mut self.body.model);
            if !value.kept.is_empty() {
                self.body.model_range = value.begin..value.end;
            }
        }
        Ok(())
    }

    fn number(&mut self, whole: Option<u64>, in_array: bool) -> Result<(), Stop> {
        self.check_scalar()?;
        match (self.depth, self.role) {
            (1, Role::Choices(_)) if self.any_api => self.sequences.raise_choices(whole),
            (1, Role::Choices(choices)) => self.sequences.set_choices(choices, whole),
            _ => {}
        }
        if self.nested_choices {
            self.sequences.raise_choices(whole);
        }
        let is_limit = self.depth == 1 && self.role == Role::MaxTokens || self.nested_limit;
        if is_limit {
            self.body.max_tokens = match (self.body.max_tokens, whole) {
                // Each engine reads keys of its own, so the greatest is the safest guess.
                (Some(limit), Some(whole)) if self.any_api => Some(limit.max(whole)),
                (Some(least), Some(whole)) => Some(least.min(whole)),
                (least, whole) => least.or(whole),
            };
        }
        let may_be_ids = self.any_api || matches!(self.role, Role::PromptOrIds(_));
        if in_array && may_be_ids && self.share == Share::Whole {
            self.count_prompt(TOKEN_ID_BYTES);
            if let Some(hasher) = &mut self.hasher {
                let [a, b, c, d, ..] = whole.unwrap_or(u64::MAX).to_le_bytes();
                hasher.write(&[a, b, c, d]);
            }
        }
        Ok(())
    }

    fn literal(&mut self, literal: Literal) -> Result<(), Stop> {
        // A model that is null is none.
        if (self.depth, self.role, literal) != (1, Role::Model, Literal::Null) {
            self.check_scalar()?;
        }
        if self.depth == 1 && self.role == Role::Stream {
            self.body.stream = literal == Literal::True;
        }
        if self.depth == 1 && self.role == Role::Background {
            self.body.is_background = literal == Literal::True;
        }
        Ok(())
    }

    fn open(&mut self, container: Container) -> Result<(), Stop> {
        match (self.depth, container) {
            (0, Container::Object) => {}
            (0, Container::Array) => return Err(Stop::NotAnObject),
            (1, _) if self.role == Role::Model => return Err(Stop::BadModel),
            (1, _) => self.sequences.begin(self.role.prompts(), container),
            (_, _) => self.count_item(),
        }
        (self.nested_limit, self.nested_choices) = (false, false);
        self.depth = self.depth.saturating_add(1);
        let bit = self.bit();
        self.whole &= !bit;
        self.capped &= !bit;
        match self.share {
            Share::Nothing => {}
            Share::Whole => self.whole |= bit,
            Share::Capped => self.capped |= bit,
        }
        Ok(())
    }

    fn close(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        if self.depth == 1 {
            self.sequences.end();
        }
        // The next item of an array has the array's share; in an object the next key sets it.
        self.share = self.container_share();
    }
}
