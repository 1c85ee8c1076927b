// Package provider knows how the senders of webhooks prove who they are. A [Scheme] is how a
// sender signs its requests. A [Preset] is the scheme and the key rule of a well-known sender.
// A [Handshake] is a request that is no message, such as a challenge. All of these are
// data; [Verifier] and [SNS] are the engines that check a request.
//
// A signature is checked over the body as it arrived, before anything decodes it. Texts that
// depend on a secret are compared in constant time.
package provider
