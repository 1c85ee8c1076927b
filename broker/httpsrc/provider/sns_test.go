package provider

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// amazon stands for SNS: it signs messages, and serves its certificate at every host.
type amazon struct {
	key *rsa.PrivateKey
	// files are what its server has, by address. Others are missing.
	files map[string]string

	mu      sync.Mutex // guards visited
	visited []string
}

const (
	certificateURL = "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-0123456789abcdef.pem"
	subscribeURL   = "https://sns.eu-west-1.amazonaws.com/?Action=ConfirmSubscription&TopicArn=arn:aws:sns:eu-west-1:123456789012:orders&Token=2336412f37"
	topic          = "arn:aws:sns:eu-west-1:123456789012:orders"
)

// keyOfTests returns one key for all tests, because it takes long to make.
var keyOfTests = sync.OnceValue(func() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key
})

// strangerKey is the key of someone else.
var strangerKey = sync.OnceValue(func() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key
})

// newAmazon returns an amazon whose certificate is valid at a time.
func newAmazon(t testing.TB, at time.Time) *amazon {
	t.Helper()
	a := &amazon{key: keyOfTests(), files: map[string]string{}}
	a.files[certificateURL] = certificateOf(t, a.key, &a.key.PublicKey, at)
	a.files[subscribeURL] = "<ConfirmSubscriptionResponse/>"
	return a
}

func certificateOf(t testing.TB, key, public any, at time.Time) string {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "sns.amazonaws.com"}, NotBefore: at.Add(-24 * time.Hour), NotAfter: at.Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// RoundTrip implements http.RoundTripper.
func (a *amazon) RoundTrip(r *http.Request) (*http.Response, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.visited = append(a.visited, r.URL.String())
	answer := httptest.NewRecorder()
	text, ok := a.files[r.URL.String()]
	switch {
	case text == "down":
		return nil, errors.New("connection refused")
	case strings.HasPrefix(text, "https://"):
		http.Redirect(answer, r, text, http.StatusFound)
	case !ok:
		http.NotFound(answer, r)
	default:
		_, _ = io.WriteString(answer, text)
	}
	return answer.Result(), nil
}

// sns returns an SNS whose connections go to the amazon.
func (a *amazon) sns(t testing.TB, opts *SNSOptions) *SNS {
	t.Helper()
	s, err := NewSNS(opts)
	if err != nil {
		t.Fatal(err)
	}
	s.client.Transport = a
	return s
}

// message returns the members of a signed message. changed replaces members before it is
// signed; a nil one is left out.
func (a *amazon) message(t testing.TB, version string, now time.Time, changed map[string]any) map[string]any {
	t.Helper()
	members := map[string]any{
		"Type": "Notification", "MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324", "TopicArn": topic, "Subject": "My First Message",
		"Message": "{\"order\":7}\nMessageId\n8", "Timestamp": now.UTC().Format("2006-01-02T15:04:05.000Z"), "SignatureVersion": version,
		"SigningCertURL": certificateURL, "UnsubscribeURL": "https://sns.eu-west-1.amazonaws.com/?Action=Unsubscribe",
	}
	maps.Copy(members, changed)
	maps.DeleteFunc(members, func(_ string, value any) bool { return value == nil })
	members["Signature"] = a.sign(t, version, members)
	return members
}

// sign signs as the documentation of SNS says, "Verifying the signatures of Amazon SNS messages".
func (a *amazon) sign(t testing.TB, version string, members map[string]any) string {
	t.Helper()
	var content strings.Builder
	names := []string{"Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"}
	if members["Type"] != "Notification" {
		names = []string{"Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"}
	}
	for _, name := range names {
		if value, ok := members[name]; ok {
			fmt.Fprintf(&content, "%s\n%s\n", name, value)
		}
	}
	sum, digest := crypto.SHA256, func() []byte { d := sha256.Sum256([]byte(content.String())); return d[:] }()
	if version == "1" {
		d := sha1.Sum([]byte(content.String()))
		sum, digest = crypto.SHA1, d[:]
	}
	signature, err := rsa.SignPKCS1v15(rand.Reader, a.key, sum, digest)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(signature)
}

// subscription changes a message to one that confirms a subscription.
func subscription(more map[string]any) map[string]any {
	changed := map[string]any{
		"Type": "SubscriptionConfirmation", "Subject": nil, "Message": "You have chosen to subscribe", "Token": "2336412f37", "SubscribeURL": subscribeURL,
	}
	maps.Copy(changed, more)
	return changed
}

func encoded(t testing.TB, members map[string]any) []byte {
	t.Helper()
	body, err := json.Marshal(members)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func post() *http.Request { return httptest.NewRequest(http.MethodPost, "/", nil) }

func TestSNSAcceptsBothVersionsOfItsSignature(t *testing.T) {
	t.Parallel()
	a := newAmazon(t, time.Now())
	s := a.sns(t, &SNSOptions{Topics: []string{topic}})
	for _, version := range []string{"1", "2"} {
		for name, changed := range map[string]map[string]any{
			"notification": nil, "without a subject": {"Subject": nil}, "subscription": subscription(nil),
			"unsubscription": subscription(map[string]any{"Type": "UnsubscribeConfirmation"}),
		} {
			if err := s.Verify(post(), encoded(t, a.message(t, version, time.Now(), changed))); err != nil {
				t.Errorf("version %s, %s: %v", version, name, err)
			}
		}
	}
	if len(a.visited) != 1 {
		t.Errorf("the certificate was fetched %d times: %q", len(a.visited), a.visited)
	}
}

// TestAMessageThatAmazonSignedIsAccepted has a message of 2012 and its certificate, as the test
// of MessageVerifier in the AWS SDK for Ruby has them.
func TestAMessageThatAmazonSignedIsAccepted(t *testing.T) {
	t.Parallel()
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	body, pem := read("sns-2012.json"), read("sns-2012.pem")
	at(t, time.Date(2012, 4, 30, 11, 8, 0, 0, time.UTC).Unix(), func(t *testing.T) {
		a := &amazon{files: map[string]string{"https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-f3ecfb7224c7233fe7bb5f59f96de52f.pem": pem}}
		s := a.sns(t, &SNSOptions{Topics: []string{"arn:aws:sns:eu-west-1:382739154790:for_justeat_aws_specs"}})
		if err := s.Verify(post(), []byte(body)); err != nil {
			t.Error(err)
		}
		for _, change := range [][2]string{{"dfgdsfg", "dfgdsfh"}, {"5b324425", "5b324426"}, {"07:54.008Z", "07:54.009Z"}, {"sdfghdsfg", "sdfghdsfh"}} {
			if err := s.Verify(post(), []byte(strings.Replace(body, change[0], change[1], 1))); err == nil {
				t.Errorf("%s instead of %s is accepted", change[1], change[0])
			}
		}
		time.Sleep(DefaultSNSTolerance)
		if err := s.Verify(post(), []byte(body)); err == nil {
			t.Error("it is accepted later")
		}
	})
}

// TestSNSRefusesOtherMessages has requests that are no valid message of an accepted topic.
func TestSNSRefusesOtherMessages(t *testing.T) {
	t.Parallel()
	now := time.Now()
	a := newAmazon(t, now)
	elliptical, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string {
		return "https://sns.eu-west-1.amazonaws.com/" + certificateName + name + ".pem"
	}
	a.files[at("old")] = certificateOf(t, a.key, &a.key.PublicKey, now.Add(-48*time.Hour))
	a.files[at("curve")] = certificateOf(t, elliptical, &elliptical.PublicKey, now)
	a.files["https://sns.evil.com/x.pem"] = a.files[certificateURL]
	after := func(change func(members map[string]any)) []byte {
		members := a.message(t, "2", now, nil)
		change(members)
		return encoded(t, members)
	}
	signed := func(changed map[string]any) []byte { return encoded(t, a.message(t, "2", now, changed)) }
	valid := string(after(func(map[string]any) {}))
	manyMembers := ""
	for i := range mostMembers {
		manyMembers += fmt.Sprintf(`"%d":1,`, i)
	}
	for name, c := range map[string]struct {
		body []byte
		want string
	}{
		"another message":      {after(func(m map[string]any) { m["Message"] = "x" }), "Signature is not that"},
		"another id":           {after(func(m map[string]any) { m["MessageId"] = "x" }), "Signature is not that"},
		"the subject left out": {after(func(m map[string]any) { delete(m, "Subject") }), "Signature is not that"},
		"the subject within the id": {after(func(m map[string]any) {
			delete(m, "Subject")
			m["MessageId"] = m["MessageId"].(string) + "\nSubject\nMy First Message"
		}), "MessageId is missing, or is not a text of one line"},
		"another version":             {after(func(m map[string]any) { m["SignatureVersion"] = "1" }), "Signature is not that"},
		"no version":                  {after(func(m map[string]any) { delete(m, "SignatureVersion") }), "neither 1 nor 2"},
		"no signature":                {after(func(m map[string]any) { delete(m, "Signature") }), "Signature is missing"},
		"an id twice":                 {[]byte(`{"MessageId":"x",` + valid[1:]), `"MessageId" twice`},
		"something behind":            {[]byte(valid + "{}"), "not a JSON object"},
		"no object":                   {[]byte("[" + valid + "]"), "not a JSON object"},
		"invalid UTF-8":               {[]byte(strings.Replace(valid, "First", "\xff", 1)), "not a JSON object"},
		"a number as id":              {after(func(m map[string]any) { m["MessageId"] = 7 }), "MessageId is missing"},
		"a raw message":               {[]byte(`{"order":7}`), "raw message delivery must be off"},
		"a raw text":                  {[]byte(`order 7`), "raw message delivery must be off"},
		"half of a surrogate pair":    {[]byte(strings.Replace(valid, "My First", `\ud800 First`, 1)), "Subject is missing, or is not a text"},
		"half of one in a name":       {[]byte(`{"\udc00":1,` + valid[1:]), "half of a surrogate pair"},
		"many members":                {[]byte("{" + manyMembers + valid[1:]), "more than 100 members"},
		"a certificate elsewhere":     {signed(map[string]any{"SigningCertURL": "https://sns.evil.com/x.pem"}), "SigningCertURL is at https://sns.evil.com, which is not among the allowed hosts"},
		"a certificate without TLS":   {signed(map[string]any{"SigningCertURL": "http://sns.eu-west-1.amazonaws.com/x.pem"}), "not among the allowed hosts"},
		"a port":                      {signed(map[string]any{"SigningCertURL": "https://sns.eu-west-1.amazonaws.com:8443/x.pem"}), "not among the allowed hosts"},
		"a host that ends so":         {signed(map[string]any{"SigningCertURL": "https://sns.eu-west-1.amazonaws.com.evil.com/x.pem"}), "not among the allowed hosts"},
		"another file":                {signed(map[string]any{"SigningCertURL": "https://sns.eu-west-1.amazonaws.com/x.pem"}), "not the address of a certificate"},
		"a user":                      {signed(map[string]any{"SigningCertURL": "https://sns.eu-west-1.amazonaws.com@evil.com/x.pem"}), "SigningCertURL is not an address"},
		"a page":                      {signed(map[string]any{"SigningCertURL": "https://sns.eu-west-1.amazonaws.com/?x.pem"}), "not the address of a certificate"},
		"an expired certificate":      {signed(map[string]any{"SigningCertURL": at("old")}), "the certificate is valid from"},
		"another kind of key":         {signed(map[string]any{"SigningCertURL": at("curve")}), "has no RSA key"},
		"another topic":               {signed(map[string]any{"TopicArn": topic + "2"}), "the topic " + topic + "2 is not among topics"},
		"a late message":              {signed(map[string]any{"Timestamp": now.Add(-DefaultSNSTolerance - time.Minute).UTC().Format(time.RFC3339)}), "beyond the tolerance of 2h0m0s"},
		"an early message":            {signed(map[string]any{"Timestamp": now.Add(DefaultSNSTolerance + time.Minute).UTC().Format(time.RFC3339)}), "beyond the tolerance of 2h0m0s"},
		"a time that is none":         {signed(map[string]any{"Timestamp": "yesterday"}), "Timestamp is not a time"},
		"a subscription without link": {signed(subscription(map[string]any{"SubscribeURL": nil})), "SubscribeURL is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := a.sns(t, &SNSOptions{Topics: []string{topic}}).Verify(post(), c.body)
			if _, ok := errors.AsType[*Refusal](err); !ok || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want a refusal with %q", err, c.want)
			}
		})
	}
	t.Cleanup(func() {
		for _, address := range a.visited {
			if !strings.HasPrefix(address, "https://sns.eu-west-1.amazonaws.com/") {
				t.Errorf("%s was visited", address)
			}
		}
	})
}

// A stranger can have a bucket of S3 that is called sns, and its certificate in there.
func TestOnlyTheHostsOfSNSHaveCertificates(t *testing.T) {
	t.Parallel()
	a := newAmazon(t, time.Now())
	for host, allowed := range map[string]bool{
		"sns.eu-west-1.amazonaws.com": true, "sns.us-gov-east-1.amazonaws.com": true, "sns.cn-north-1.amazonaws.com.cn": true, "sns.ap-southeast-12.amazonaws.com": true,
		"sns.s3.amazonaws.com": false, "sns.s3-eu-west-1.amazonaws.com": false, "sns.s3.eu-west-1.amazonaws.com": false, "sns.s3-accelerate.amazonaws.com": false,
		"sns.s3-us-gov-west-1.amazonaws.com": false, "sns.s3-website-eu-west-1.amazonaws.com": false, "sns.eu-west.amazonaws.com": false, "sns.eu-west-1-s3.amazonaws.com": false,
		"sns..amazonaws.com": false, "sns.EU-west-1.amazonaws.com": false, "eu-west-1.sns.amazonaws.com": false, "sns.amazonaws.com": false,
	} {
		address := "https://" + host + "/" + certificateName + "x.pem"
		a.files[address] = a.files[certificateURL]
		err := a.sns(t, nil).Verify(post(), encoded(t, a.message(t, "2", time.Now(), map[string]any{"SigningCertURL": address})))
		if _, refused := errors.AsType[*Refusal](err); refused == allowed || allowed && err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
	for _, address := range a.visited {
		if strings.Contains(address, "s3") {
			t.Errorf("%s was visited", address)
		}
	}
}

// A server that does not answer says nothing about the signature. SNS would give up a message
// that is refused.
func TestAnUnreachableCertificateIsNoRefusal(t *testing.T) {
	t.Parallel()
	a := newAmazon(t, time.Now())
	for name, text := range map[string]string{"down": "down", "missing": "", "elsewhere": "https://example.com/x.pem", "the page of a proxy": "<html>", "a broken one": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"} {
		if a.files[certificateURL] = text; text == "" {
			delete(a.files, certificateURL)
		}
		err := a.sns(t, nil).Verify(post(), encoded(t, a.message(t, "2", time.Now(), nil)))
		if unavailable, ok := errors.AsType[*UnavailableError](err); !ok || unavailable.MadeUp != (name != "down" && name != "elsewhere") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, address := range a.visited {
		if address != certificateURL {
			t.Errorf("%s was visited", address)
		}
	}
}

// TestASubscriptionIsConfirmedAtAnAllowedHostOnly answers requests about subscriptions.
func TestASubscriptionIsConfirmedAtAnAllowedHostOnly(t *testing.T) {
	t.Parallel()
	a := newAmazon(t, time.Now())
	s := a.sns(t, nil)
	answer := func(changed map[string]any) (*Reply, error) {
		body := encoded(t, a.message(t, "2", time.Now(), changed))
		for _, h := range s.Handshakes() {
			if reply, err := h.Answer(post(), body); reply != nil || err != nil {
				return reply, err
			}
		}
		return nil, nil
	}
	if reply, err := answer(nil); reply != nil || err != nil {
		t.Errorf("a notification is a handshake: %+v, %v", reply, err)
	}
	if reply, err := answer(subscription(map[string]any{"Type": "UnsubscribeConfirmation"})); err != nil || reply == nil || len(a.visited) > 0 || !reply.Ends || !strings.HasSuffix(reply.Note, ": "+topic) {
		t.Errorf("after an end: %+v, %v, %q", reply, err, a.visited)
	}
	_, err := answer(subscription(map[string]any{"SubscribeURL": "https://169.254.169.254/latest/meta-data"}))
	if _, refused := errors.AsType[*Refusal](err); !refused || len(a.visited) > 0 {
		t.Errorf("an address elsewhere: %v, %q", err, a.visited)
	}
	if reply, err := answer(subscription(nil)); err != nil || reply == nil || reply.Status != http.StatusOK || reply.Ends || reply.Note != "the subscription is confirmed: "+topic || len(a.visited) != 1 || a.visited[0] != subscribeURL {
		t.Errorf("%+v, %v, %q", reply, err, a.visited)
	}
	a.files[subscribeURL] = "down"
	_, err = answer(subscription(nil))
	if _, ok := errors.AsType[*UnavailableError](err); !ok || strings.Contains(err.Error(), "2336412f37") {
		t.Errorf("a server that is down: %v", err)
	}
}

// Nobody has signed a request whose certificate is fetched.
func TestACertificateIsFetchedOnceForAllRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAmazon(t, time.Now())
		s := a.sns(t, &SNSOptions{Topics: []string{topic}})
		s.client.Transport = slowly{a, func() { time.Sleep(time.Second) }}
		verify := func(n int, changed map[string]any) (failed int) {
			body := encoded(t, a.message(t, "2", time.Now(), changed))
			answers := make(chan error, n)
			for range n {
				go func() { answers <- s.Verify(post(), body) }()
			}
			for range n {
				if <-answers != nil {
					failed++
				}
			}
			return failed
		}
		begin := time.Now()
		if failed := verify(300, nil); failed > 0 || len(a.visited) != 1 || time.Since(begin) > 2*time.Second {
			t.Errorf("%d of 300 failed after %v, with %d visits", failed, time.Since(begin), len(a.visited))
		}
		missing := map[string]any{"SigningCertURL": "https://sns.eu-west-1.amazonaws.com/" + certificateName + "missing.pem"}
		if failed := verify(300, missing); failed != 300 || len(a.visited) != 2 {
			t.Errorf("%d of 300 failed at a missing certificate, with %d visits", failed, len(a.visited))
		}
		time.Sleep(failedFor + 1)
		if verify(1, missing); len(a.visited) != 3 {
			t.Errorf("it is not looked for again: %d visits", len(a.visited))
		}
		missing["TopicArn"] = topic + "2"
		if verify(1, missing); len(a.visited) != 3 {
			t.Error("a message of another topic makes it fetch a certificate")
		}
		for i := range 300 { // strangers must not push the certificate out
			go verify(1, map[string]any{"SigningCertURL": fmt.Sprintf("https://sns.eu-west-1.amazonaws.com/"+certificateName+"%d.pem", i)})
		}
		synctest.Wait()
		begin = time.Now()
		if failed := verify(1, nil); failed > 0 || time.Since(begin) > 0 {
			t.Errorf("a known certificate among others: %v", time.Since(begin))
		}
		time.Sleep(2 * fetchPatience)
		synctest.Wait()
		if begin = time.Now(); verify(1, nil) > 0 || time.Since(begin) > 0 {
			t.Errorf("a known certificate after others: %v", time.Since(begin))
		}
	})
}

// An expired certificate may have been replaced at its address.
func TestAnExpiredCertificateIsFetchedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAmazon(t, time.Now())
		s := a.sns(t, nil)
		verify := func() error { return s.Verify(post(), encoded(t, a.message(t, "2", time.Now(), nil))) }
		if err := verify(); err != nil {
			t.Error(err)
		}
		time.Sleep(25 * time.Hour)
		if err := verify(); err == nil {
			t.Error("an expired certificate is accepted")
		}
		a.files[certificateURL] = certificateOf(t, a.key, &a.key.PublicKey, time.Now())
		time.Sleep(failedFor + 1)
		if err := verify(); err != nil {
			t.Error(err)
		}
	})
}

// slowly answers after a wait.
type slowly struct {
	a    *amazon
	wait func()
}

// RoundTrip implements http.RoundTripper.
func (s slowly) RoundTrip(r *http.Request) (*http.Response, error) {
	s.wait()
	return s.a.RoundTrip(r)
}

// TestCertificatesAreKeptWithinABound fetches more certificates than are kept.
func TestCertificatesAreKeptWithinABound(t *testing.T) {
	t.Parallel()
	a := newAmazon(t, time.Now())
	s := a.sns(t, nil)
	for i := range mostKeys + 5 {
		address := fmt.Sprintf("https://sns.eu-west-1.amazonaws.com/"+certificateName+"%d.pem", i)
		a.files[address] = a.files[certificateURL]
		if err := s.Verify(post(), encoded(t, a.message(t, "2", time.Now(), map[string]any{"SigningCertURL": address}))); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.certificates) > mostKeys {
		t.Errorf("%d certificates are kept", len(s.certificates))
	}
}

// A stranger may have sent the body.
func TestTheMembersOfABodyTakeNoMemoryOfTheirOwn(t *testing.T) {
	body := []byte("[" + strings.Repeat("1,", 1<<19) + "1]")
	many := []byte(`{"Type":` + string(body) + strings.Repeat(`,"a":1`, 10) + "}")
	for name, c := range map[string][]byte{"an array": body, "many members": many} {
		if allocated := testing.AllocsPerRun(1, func() { _, _ = membersOf(c) }); allocated > 3*mostMembers {
			t.Errorf("%s: %v allocations", name, allocated)
		}
	}
	members, err := membersOf([]byte(" {\"a\" : [1, 2] , \"b\":\"\\ud83d\\ude00\\\\ud800\"}\n"))
	if text, ok := textOf(members["b"]); err != nil || string(members["a"]) != "[1, 2]" || !ok || text != "\U0001f600\\ud800" {
		t.Errorf("%q, %v, %v", text, ok, err)
	}
}
