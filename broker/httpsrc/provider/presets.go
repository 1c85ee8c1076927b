package provider

// Preset is how a well-known sender signs its requests, and how its messages are distinguished.
type Preset struct {
	Name string
	// Title is the name of the sender in texts.
	Title string
	Scheme
	// Key is the key rule that the sender documents: rules of which the first one that finds
	// an id counts. Each is a composite of the rules in it.
	Key [][]string
	// Uncovered is the header in the key that the signature does not cover, or "".
	Uncovered string
	// Varies says that attempts of one event differ in content.
	Varies bool
	// SecretsBegin is the text with which the sender's secrets begin, although it is a part of
	// them, or "".
	SecretsBegin string
	// Handshake answers the sender's requests that are no messages. It may be nil.
	Handshake *Handshake
}

// Presets returns the senders that sign with a shared secret. SNS signs with a certificate.
func Presets() []Preset {
	return []Preset{
		{
			// docs.stripe.com/webhooks: the id of the event stays the same in all attempts.
			Name: "stripe", Title: "Stripe",
			Scheme: Scheme{
				Header: "Stripe-Signature", Separator: ",", Prefix: "v1=", TimePrefix: "t=", TimeUnit: "s",
				Algorithm: "sha256", Encoding: "hex", Signed: "{time}.{body}",
			},
			Key:          [][]string{{".id"}},
			Varies:       true, // pending_webhooks
			SecretsBegin: "whsec_",
		},
		{
			// docs.github.com, "Best practices for using webhooks": a redelivery has the
			// X-GitHub-Delivery of the first delivery.
			Name: "github", Title: "GitHub",
			Scheme: Scheme{
				Header: "X-Hub-Signature-256", Prefix: "sha256=",
				Algorithm: "sha256", Encoding: "hex", Signed: "{body}",
			},
			Key:       [][]string{{"header:X-GitHub-Delivery"}},
			Uncovered: "X-GitHub-Delivery",
		},
		{
			// shopify.dev, "Ignore duplicate webhooks": X-Shopify-Event-Id names the event,
			// X-Shopify-Webhook-Id the delivery. One event may have webhooks of several topics.
			Name: "shopify", Title: "Shopify",
			Scheme: Scheme{
				Header:    "X-Shopify-Hmac-Sha256",
				Algorithm: "sha256", Encoding: "base64", Signed: "{body}",
			},
			Key:       [][]string{{"header:X-Shopify-Event-Id", "header:X-Shopify-Topic"}, {"header:X-Shopify-Event-Id"}},
			Uncovered: "X-Shopify-Event-Id",
		},
		{
			// docs.slack.dev, "The Events API": event_id is unique, and the same in all attempts.
			Name: "slack", Title: "Slack",
			Scheme: Scheme{
				Header: "X-Slack-Signature", Prefix: "v0=", TimeHeader: "X-Slack-Request-Timestamp", TimeUnit: "s",
				Algorithm: "sha256", Encoding: "hex", Signed: "v0:{time}:{body}",
			},
			Key:       [][]string{{".event_id"}},
			Handshake: &Handshake{Method: "POST", When: map[string]string{".type": "url_verification"}, Challenge: ".challenge"},
		},
		{
			// The Standard Webhooks specification: webhook-id is the same in all attempts.
			Name: "standard-webhooks", Title: "Standard Webhooks",
			Scheme: Scheme{
				Header: "webhook-signature", Separator: " ", Prefix: "v1,", TimeHeader: "webhook-timestamp", TimeUnit: "s",
				Algorithm: "sha256", Encoding: "base64", Signed: "{header:webhook-id}.{time}.{body}",
				SecretPrefix: "whsec_", SecretEncoding: "base64",
			},
			Key: [][]string{{"header:webhook-id"}},
		},
		{
			// twilio.com/docs, "Webhook connection overrides": the token is the same in all
			// attempts. A MessageSid or CallSid names the message or call, which has many events.
			Name: "twilio", Title: "Twilio",
			Scheme: Scheme{
				Header:    "X-Twilio-Signature",
				Algorithm: "sha1", Encoding: "base64", Signed: "{url}{form}",
			},
			Key:       [][]string{{"header:I-Twilio-Idempotency-Token"}},
			Uncovered: "I-Twilio-Idempotency-Token",
		},
		{
			// X-WC-Webhook-Delivery-ID is a digest of webhook and second, so two events of one
			// second share it: the content is part of the key. The ping of a new webhook has no
			// signature.
			Name: "woocommerce", Title: "WooCommerce",
			Scheme: Scheme{
				Header:    "X-WC-Webhook-Signature",
				Algorithm: "sha256", Encoding: "base64", Signed: "{body}",
			},
			Key:       [][]string{{"header:X-WC-Webhook-Delivery-ID", "hash(.)"}},
			Uncovered: "X-WC-Webhook-Delivery-ID",
			Handshake: &Handshake{Method: "POST", Unsigned: true, Absent: "X-WC-Webhook-Signature", When: map[string]string{"form:webhook_id": ""}},
		},
	}
}

// SNSKey is the Key of Amazon SNS. docs.aws.amazon.com/sns: MessageId is the same in all attempts.
func SNSKey() [][]string { return [][]string{{".MessageId"}} }
