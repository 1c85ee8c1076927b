package kafka

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestSignedTokensHaveTheAudienceOfTheBrokers has brokers that read the keys of the issuer, and
// require an audience.
func TestSignedTokensHaveTheAudienceOfTheBrokers(t *testing.T) {
	t.Parallel()
	program := built(t)
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: private, KeyID: "one"}}, nil)
	must(t, err)
	tokens := newIssuer(t, time.Hour)
	audience := "other"
	tokens.answer = func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/keys" {
			must(t, json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: private.Public(), KeyID: "one", Algorithm: "ES256", Use: "sig"}}}))
			return
		}
		now := time.Now()
		tokens.set(func() {
			text, err := jwt.Signed(signer).Claims(jwt.Claims{Issuer: "https://issuer", Subject: "semel", Audience: jwt.Audience{audience}, IssuedAt: jwt.NewNumericDate(now), Expiry: jwt.NewNumericDate(now.Add(time.Hour))}).Serialize()
			must(t, err)
			fmt.Fprintf(w, `{"access_token":%q,"expires_in":3600}`, text)
		})
	}
	allowed := "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=" + tokens.URL + "/keys"
	server := servicestest.StartKafka(t, &services.KafkaOptions{Login: true, Java: []string{allowed}, Properties: map[string]string{
		"listener.name.login.oauthbearer.sasl.jaas.config":                   "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
		"listener.name.login.oauthbearer.sasl.server.callback.handler.class": "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
		"sasl.oauthbearer.jwks.endpoint.url":                                 tokens.URL + "/keys",
		"sasl.oauthbearer.expected.audience":                                 "kafka",
	}})
	client := permit(t, server.Addr(), "User:semel", "in", "out")
	d := newDaemon(t, program, moving(services.KafkaLogin(server), "", tokens.login("")))
	d.env = secretly
	out := examine(t, d)
	for _, word := range []string{"the brokers refuse the token (invalid_token): it has scope none, audience other, issuer https://issuer, subject semel", "compare its audience, issuer and subject with those that the brokers expect"} {
		if !strings.Contains(strings.Join(strings.Fields(out), " "), word) {
			t.Errorf("doctor lacks %q:\n%s", word, out)
		}
	}
	d.start(t)
	if !within(time.Minute, func() bool { return strings.Contains(logOf(t, d), "audience other") }) {
		t.Error("the log does not name the audience")
	}
	tokens.set(func() { audience = "kafka" })
	moves(t, client, "", 1) // a token that was refused is fetched again
	d.end(t, syscall.SIGTERM)
	if out := examine(t, d); !strings.Contains(out, "audience kafka, issuer https://issuer, subject semel") || strings.Contains(out, "broken  ") {
		t.Errorf("doctor says\n%s", out)
	}
	noSecret(t, out, logOf(t, d))
}
