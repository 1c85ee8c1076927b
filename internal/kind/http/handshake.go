package http

import (
	"github.com/semel-dev/semel/broker/httpsrc/provider"
	"github.com/semel-dev/semel/internal/schema"
)

// handshake is a request of the sender that is no message.
type handshake struct {
	provider.Handshake
	// Token is the text by which Meta recognises the receiver.
	Token schema.Secret
}

// handshakeField has one of the handshakes. Presets of verify bring their own.
func handshakeField(target **handshake) schema.Field {
	kinds := []struct {
		name, doc string
		fields    func(h *handshake) []schema.Field
	}{
		{"meta", "Facebook, Instagram and WhatsApp: a `GET` with `hub.challenge`.", func(h *handshake) []schema.Field {
			return []schema.Field{schema.SecretField("token", &h.Token, "The verify token that the app has. A request with another one gets a 403.").Need()}
		}},
		{"okta", "Event hooks: a `GET` with `X-Okta-Verification-Challenge`.", nil},
		{"dropbox", "A `GET` with `challenge`.", nil},
		{"cloudevents", "Webhooks of CloudEvents, as Azure Event Grid sends them: an `OPTIONS` with `WebHook-Request-Origin`.", func(h *handshake) []schema.Field {
			return []schema.Field{schema.TextsField("origins", &h.Allowed, "The origins that may send. Others get a 403.").Means("all")}
		}},
	}
	members := func() schema.Mapping {
		var fields []schema.Field
		for _, k := range kinds {
			fields = append(fields, schema.KindField(k.name, target, func() (*handshake, schema.Mapping) {
				h := &handshake{Handshake: provider.Handshakes()[k.name]}
				if k.fields == nil {
					return h, schema.Mapping{}
				}
				return h, schema.Mapping{Fields: k.fields(h)}
			}, k.doc))
		}
		return schema.KindsOf(fields...)
	}
	return schema.Field{Name: "handshake", Doc: "A challenge of the sender, which the source answers itself. The presets `slack`, `woocommerce` and `sns` of `verify` bring theirs. It has one kind.", Form: schema.Form{Members: members}, Shown: "none", Read: func(v schema.Value) {
		v.Kind(members(), "handshake", "{ okta: {} }")
	}}
}

// open returns the handshake with its token.
func (h *handshake) open() *provider.Handshake {
	opened := h.Handshake
	opened.Token = h.Token.Reveal()
	return &opened
}
