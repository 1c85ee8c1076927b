package kafka

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	mskiam "github.com/twmb/franz-go/pkg/sasl/aws"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka"
)

// members returns the members of a message with which a client logs in.
func membersOf(t *testing.T, text []byte) map[string]string {
	t.Helper()
	members := map[string]string{}
	if err := json.Unmarshal(text, &members); err != nil {
		t.Fatal(err)
	}
	return members
}

// TestTheLoginIsSignedAsAnotherClientSignsIt compares with the mechanism of franz-go.
func TestTheLoginIsSignedAsAnotherClientSignsIt(t *testing.T) {
	t.Parallel()
	for _, session := range []string{"", "a/session+token=="} {
		const host = "b-1.orders.abc123.c2.kafka.eu-west-1.amazonaws.com"
		other := mskiam.Auth{AccessKey: "AKIAEXAMPLE", SecretKey: "secret/key", SessionToken: session, UserAgent: "semel"}.AsManagedStreamingIAMMechanism()
		_, want, err := other.Authenticate(t.Context(), host+":9098")
		if err != nil {
			t.Fatal(err)
		}
		at, err := time.Parse("20060102T150405Z", membersOf(t, want)["x-amz-date"])
		if err != nil {
			t.Fatal(err)
		}
		got, err := signed(t.Context(), aws.Credentials{AccessKeyID: "AKIAEXAMPLE", SecretAccessKey: "secret/key", SessionToken: session}, host, "eu-west-1", at)
		if err != nil {
			t.Fatal(err)
		}
		if one, two := membersOf(t, got), membersOf(t, want); fmt.Sprint(one) != fmt.Sprint(two) {
			t.Errorf("it is\n%v, want\n%v", one, two)
		}
	}
}

func TestTheRegionIsThatOfTheBroker(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]string{
		"b-1.orders.abc123.c2.kafka.eu-west-1.amazonaws.com": "eu-west-1", "boot-abc.c2.kafka-serverless.us-east-2.amazonaws.com": "us-east-2",
		"b-1.x.kafka.cn-north-1.amazonaws.com.cn": "cn-north-1", "kafka.example.com": "",
		"vpce-0abc-def.vpce-svc-0123.eu-west-1.vpce.amazonaws.com": "", "orders-abc.elb.us-east-1.amazonaws.com": "", "ec2-1-2-3-4.compute-1.amazonaws.com": "", "127.0.0.1": "",
	} {
		if got := regionOf(host); got != want {
			t.Errorf("%s: %q, want %q", host, got, want)
		}
	}
}

// msk is a broker that takes logins of AWS_MSK_IAM, as far as the protocol is known: it checks the
// signature, and ends each session after two seconds.
type msk struct {
	*kfake.Cluster
	secrets map[string]string // by access key
	tokens  map[string]string // of sessions, by access key
	region  string
	logins  atomic.Int64
	refused atomic.Pointer[string]
}

func newMSK(t *testing.T) *msk {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "in"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	m := &msk{Cluster: cluster, secrets: map[string]string{"AKIAEXAMPLE": "secret/key"}, tokens: map[string]string{}, region: "eu-west-1"}
	cluster.ControlKey(int16(kmsg.SASLHandshake), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		resp := req.ResponseKind().(*kmsg.SASLHandshakeResponse)
		if resp.SupportedMechanisms = []string{awsMechanism}; req.(*kmsg.SASLHandshakeRequest).Mechanism != awsMechanism {
			resp.ErrorCode = kerr.UnsupportedSaslMechanism.Code
		}
		return resp, nil, true
	})
	cluster.ControlKey(int16(kmsg.SASLAuthenticate), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		resp := req.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		if why := m.check(req.(*kmsg.SASLAuthenticateRequest).SASLAuthBytes); why != "" {
			m.refused.Store(&why)
			resp.ErrorCode, resp.ErrorMessage = kerr.SaslAuthenticationFailed.Code, kmsg.StringPtr("["+why+"]: Access denied")
			return resp, nil, true
		}
		m.logins.Add(1)
		resp.SASLAuthBytes, resp.SessionLifetimeMillis = []byte(`{"version":"2020_10_22","request-id":"1"}`), 2000
		return resp, nil, true
	})
	return m
}

// check verifies a signed request as AWS documents it, and says what is wrong.
func (m *msk) check(text []byte) string {
	var got map[string]string
	if err := json.Unmarshal(text, &got); err != nil {
		return "no JSON"
	}
	key, scope, _ := strings.Cut(got["x-amz-credential"], "/")
	day, _, _ := strings.Cut(got["x-amz-date"], "T")
	if scope != day+"/"+m.region+"/kafka-cluster/aws4_request" || got["version"] != "2020_10_22" || got["action"] != "kafka-cluster:Connect" || got["host"] != "127.0.0.1" {
		return "scope " + scope
	}
	if got["x-amz-security-token"] != m.tokens[key] {
		return "session token"
	}
	names := map[string]string{
		"action": "Action", "x-amz-algorithm": "X-Amz-Algorithm", "x-amz-credential": "X-Amz-Credential", "x-amz-date": "X-Amz-Date",
		"x-amz-expires": "X-Amz-Expires", "x-amz-signedheaders": "X-Amz-SignedHeaders", "x-amz-security-token": "X-Amz-Security-Token",
	}
	query := url.Values{}
	for small, name := range names {
		if value := got[small]; value != "" {
			query.Set(name, value)
		}
	}
	nothing := sha256.Sum256(nil)
	request := sha256.Sum256([]byte("GET\n/\n" + strings.ReplaceAll(query.Encode(), "+", "%20") + "\nhost:" + got["host"] + "\n\nhost\n" + hex.EncodeToString(nothing[:])))
	sign := func(key []byte, text string) []byte {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(text))
		return mac.Sum(nil)
	}
	of := sign(sign(sign(sign([]byte("AWS4"+m.secrets[key]), day), m.region), "kafka-cluster"), "aws4_request")
	if want := hex.EncodeToString(sign(of, "AWS4-HMAC-SHA256\n"+got["x-amz-date"]+"\n"+scope+"\n"+hex.EncodeToString(request[:]))); got["x-amz-signature"] != want {
		return "signature"
	}
	return ""
}

// alone lets AWS credentials be only where a test puts them.
func alone(t *testing.T, env map[string]string) {
	t.Helper()
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_STS"} {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", t.TempDir())
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	for name, value := range env {
		t.Setenv(name, value)
	}
}

// TestAClientLogsInToMSK has a stub of the protocol, with the signature of the documentation. Amazon's
// service was not asked.
func TestAClientLogsInToMSK(t *testing.T) {
	sts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("Action") != "AssumeRole" || r.FormValue("RoleArn") != "arn:aws:iam::1:role/reader" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		_, _ = io.WriteString(w, `<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials><AccessKeyId>ASIAROLE</AccessKeyId><SecretAccessKey>of the role</SecretAccessKey><SessionToken>a+session/token==</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>`)
	}))
	defer sts.Close()
	keys := map[string]string{"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": "secret/key", "AWS_ENDPOINT_URL_STS": sts.URL}
	with := func(name, value string) map[string]string {
		env := map[string]string{name: value}
		for name, value := range keys {
			if env[name] == "" {
				env[name] = value
			}
		}
		return env
	}
	for _, c := range []struct {
		name  string
		aws   *AWS
		env   map[string]string
		words []string // cause and remedy; nil if it logs in
	}{
		{"region", &AWS{Region: "eu-west-1"}, keys, nil},
		{"region of the environment", &AWS{}, with("AWS_REGION", "eu-west-1"), nil},
		{"role", &AWS{Region: "eu-west-1", Role: "arn:aws:iam::1:role/reader"}, keys, nil},
		{"other role", &AWS{Region: "eu-west-1", Role: "arn:aws:iam::1:role/other"}, keys, []string{"the role arn:aws:iam::1:role/other cannot be taken on", "permit sts:AssumeRole"}},
		{"no region", &AWS{}, keys, []string{"the AWS region of 127.0.0.1 is unknown", "write sasl.aws_msk_iam.region, or set AWS_REGION"}},
		{"other region", &AWS{Region: "us-east-1"}, keys, []string{"MSK refuses the AWS credentials", "Access denied", "allow kafka-cluster:Connect", "source.kafka.sasl.aws_msk_iam.region"}},
		{"other secret", &AWS{Region: "eu-west-1"}, with("AWS_SECRET_ACCESS_KEY", "another"), []string{"MSK refuses the AWS credentials"}},
		{"no credentials", &AWS{Region: "eu-west-1"}, nil, []string{"there are no AWS credentials", "give the machine a role"}},
		{"no such profile", &AWS{Region: "eu-west-1", Profile: "none"}, keys, []string{"the AWS configuration cannot be read", "correct the profile"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			alone(t, c.env)
			broker := newMSK(t)
			broker.secrets["ASIAROLE"], broker.tokens["ASIAROLE"] = "of the role", "a+session/token=="
			client := Client{Brokers: broker.ListenAddrs(), SASL: &SASL{AWS: c.aws}}
			opts, err := client.options()
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			source, err := kafka.OpenSource(ctx, &kafka.SourceOptions{Client: opts, Group: "g", Topics: []string{"in"}})
			if c.words != nil {
				said := client.Advise(nil, nil, "source.kafka", err)
				if err == nil || said == nil {
					t.Fatalf("%v is explained as %v", err, said)
				}
				for _, word := range c.words {
					if text := said.Error(); !strings.Contains(text, word) || strings.Contains(text, "secret/key") {
						t.Errorf("it lacks %q: %s", word, text)
					}
				}
				return
			}
			if err != nil {
				why := broker.refused.Load()
				t.Fatal(err, why)
			}
			// The client logs in again on its connections before the sessions end.
			producer, err := kgo.NewClient(append(opts, kgo.DefaultProduceTopic("in"))...)
			if err != nil {
				t.Fatal(err)
			}
			defer producer.Close()
			before := int64(0)
			for n := 0; n < 4 || broker.logins.Load() < before+4; n++ {
				if n == 3 { // all connections are open
					before = broker.logins.Load()
				}
				if err := producer.ProduceSync(ctx, kgo.StringRecord("x")).FirstErr(); err != nil {
					t.Fatal(err)
				}
				items, err := source.Read(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if err := source.Ack(ctx, items); err != nil {
					t.Fatal(err)
				}
			}
			if err := source.Close(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestErrorsOfAWSCredentialsHaveAClass: credentials may come later, a wrong configuration lasts.
func TestErrorsOfAWSCredentialsHaveAClass(t *testing.T) {
	alone(t, nil)
	_, _, err := (&AWS{Region: "eu-west-1"}).Authenticate(t.Context(), "h:1")
	if !errors.Is(err, semel.ErrStoreUnavailable) || !errors.Is(err, kerr.SaslAuthenticationFailed) || !kgo.IsRetryableBrokerErr(err) {
		t.Errorf("no credentials: %v", err)
	}
	_, _, err = (&AWS{Profile: "none"}).Authenticate(t.Context(), "h:1")
	if !errors.Is(err, semel.ErrInvalidRequest) || kgo.IsRetryableBrokerErr(err) {
		t.Errorf("no such profile: %v", err)
	}
}

func TestCredentialsAreRenewedBeforeTheyEnd(t *testing.T) {
	t.Parallel()
	asked, fails := 0, false
	provider := aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		if asked++; fails {
			return aws.Credentials{}, errors.New("no answer")
		}
		return aws.Credentials{AccessKeyID: fmt.Sprint(asked), SecretAccessKey: "s", CanExpire: true, Expires: time.Now().Add(4 * time.Minute)}, nil
	})
	a := &AWS{loaded: &aws.Config{Credentials: aws.NewCredentialsCache(provider, early)}}
	for n := range 2 {
		if creds, _, err := a.credentials(t.Context()); err != nil || creds.AccessKeyID != fmt.Sprint(n+1) {
			t.Errorf("credentials that end in four minutes: %q, %v", creds.AccessKeyID, err)
		}
	}
	fails = true
	if creds, _, err := a.credentials(t.Context()); err != nil || creds.AccessKeyID != "2" {
		t.Errorf("a renewal failed four minutes before the end: %q, %v", creds.AccessKeyID, err)
	}
}
