package kafka

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/twmb/franz-go/pkg/sasl"

	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/bearer"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/schema"
)

// AWS logs in to Amazon MSK with AWS credentials, from where users of AWS expect them.
type AWS struct {
	// Region, Profile and Role are optional.
	Region, Profile, Role string

	loading sync.Mutex // guards the fields below; held while the configuration is read
	loaded  *aws.Config
	last    aws.Credentials
}

// awsField is the field of AWS credentials.
func awsField(target **AWS) schema.Field {
	return schema.PartField("aws_msk_iam", func() schema.Mapping {
		a := &AWS{}
		*target = a
		return schema.Mapping{Fields: []schema.Field{
			schema.TextField("region", &a.Region, "AWS region of the cluster.").Means("that in the name of the broker, or of the AWS configuration"),
			schema.TextField("profile", &a.Profile, "Profile of the AWS configuration files whose credentials are used.").Means("the usual order: environment, `AWS_PROFILE`, role of the machine or container"),
			schema.TextField("role", &a.Role, "ARN of a role to take on with these credentials."),
		}}
	}, "AWS credentials for Amazon MSK (`AWS_MSK_IAM`); `{}` is enough.").Means("off").Titled("AWS credentials for MSK")
}

// credentialsWithin limits how long credentials are searched for.
const credentialsWithin = 8 * time.Second

// renewedBefore is how long before their end credentials are renewed. MSK ends a session with the
// credentials of its login.
const renewedBefore = 5 * time.Minute

// early makes credentials say that they end, and renew, so much earlier.
func early(o *aws.CredentialsCacheOptions) { o.ExpiryWindow = renewedBefore }

// configuration returns the AWS configuration. Its credentials renew themselves.
func (a *AWS) configuration(ctx context.Context) (*aws.Config, error) {
	a.loading.Lock()
	defer a.loading.Unlock()
	if a.loaded != nil {
		return a.loaded, nil
	}
	var opts []func(*awsconfig.LoadOptions) error
	if a.Profile != "" {
		opts = append(opts, awsconfig.WithSharedConfigProfile(a.Profile))
	}
	if a.Region != "" {
		opts = append(opts, awsconfig.WithRegion(a.Region))
	}
	opts = append(opts, awsconfig.WithCredentialsCacheOptions(early))
	found, err := awsconfig.LoadDefaultConfig(ctx, opts...)
	if err != nil && ctx.Err() != nil {
		return nil, &bearer.Error{Cause: "the AWS configuration is not read in time", Remedy: "are its files on a disk that answers?"}
	}
	if err != nil {
		return nil, &bearer.Error{Cause: "the AWS configuration cannot be read: " + diagnose.Line(err.Error()), Remedy: "correct the profile or the AWS configuration files", Lasting: true}
	}
	if a.Role != "" {
		if found.Region == "" {
			found.Region = "us-east-1" // the service that gives roles needs one
		}
		found.Credentials = aws.NewCredentialsCache(stscreds.NewAssumeRoleProvider(sts.NewFromConfig(found), a.Role, func(o *stscreds.AssumeRoleOptions) { o.RoleSessionName = "semel" }), early)
	}
	a.loaded = &found
	return a.loaded, nil
}

// credentials returns credentials that have not ended.
func (a *AWS) credentials(ctx context.Context) (aws.Credentials, *aws.Config, error) {
	ctx, cancel := context.WithTimeout(ctx, credentialsWithin)
	defer cancel()
	found, err := a.configuration(ctx)
	if err != nil {
		return aws.Credentials{}, nil, err
	}
	creds, err := found.Credentials.Retrieve(ctx)
	a.loading.Lock()
	defer a.loading.Unlock()
	switch {
	case err == nil:
		a.last = creds
		return creds, found, nil
	case a.last.CanExpire && time.Now().Before(a.last.Expires.Add(renewedBefore)): // they can still be used
		return a.last, found, nil
	case a.Role != "":
		err = &bearer.Error{Cause: "the role " + a.Role + " cannot be taken on: " + diagnose.Line(err.Error()), Remedy: "permit sts:AssumeRole for the credentials of this process, and let the role trust them"}
	default:
		err = &bearer.Error{Cause: "there are no AWS credentials: " + diagnose.Line(err.Error()), Remedy: "set sasl.aws_msk_iam.profile or AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role"}
	}
	return aws.Credentials{}, nil, err
}

// Name implements sasl.Mechanism.
func (*AWS) Name() string { return awsMechanism }

// Authenticate implements sasl.Mechanism.
func (a *AWS) Authenticate(ctx context.Context, host string) (sasl.Session, []byte, error) {
	creds, found, err := a.credentials(ctx)
	if err != nil {
		return nil, nil, loginError{err}
	}
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		return nil, nil, fmt.Errorf("broker %s: %w", host, err)
	}
	region := cmp.Or(a.Region, regionOf(name), found.Region)
	if region == "" {
		return nil, nil, loginError{&bearer.Error{Cause: "the AWS region of " + name + " is unknown", Remedy: "write sasl.aws_msk_iam.region, or set AWS_REGION", Lasting: true}}
	}
	first, err := signed(ctx, creds, name, region, time.Now())
	return awsSession{}, first, err
}

// regionOf returns the region in the name of a broker of MSK, or "". Another name, such as that of an
// endpoint of PrivateLink, says nothing about the region of the cluster.
func regionOf(host string) string {
	for _, suffix := range []string{".amazonaws.com", ".amazonaws.com.cn", ".c2s.ic.gov", ".sc2s.sgov.gov"} {
		if rest, ok := strings.CutSuffix(host, suffix); ok {
			if labels := strings.Split(rest, "."); len(labels) > 2 && (labels[len(labels)-2] == "kafka" || labels[len(labels)-2] == "kafka-serverless") {
				return labels[len(labels)-1]
			}
		}
	}
	return ""
}

// signed returns the message with which a client logs in: a signed request for the action
// kafka-cluster:Connect, as a JSON object.
func signed(ctx context.Context, creds aws.Credentials, host, region string, now time.Time) ([]byte, error) {
	const noBody = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" // its SHA-256
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+host+"/?Action=kafka-cluster%3AConnect&X-Amz-Expires=300", nil)
	if err != nil {
		return nil, err
	}
	uri, _, err := v4.NewSigner().PresignHTTP(ctx, creds, req, noBody, "kafka-cluster", region, now)
	if err != nil {
		return nil, fmt.Errorf("sign the login at %s: %w", host, err)
	}
	to, err := url.Parse(uri)
	if err != nil {
		return nil, errors.New("sign the login: the signer gives no address") // the text of err has the signature
	}
	members := map[string]string{"version": "2020_10_22", "host": host, "user-agent": "semel"}
	for name, values := range to.Query() {
		members[strings.ToLower(name)] = values[0]
	}
	return json.Marshal(members)
}

// awsSession is one login.
type awsSession struct{}

// Challenge implements sasl.Session. A broker that accepts a client answers with a document.
func (awsSession) Challenge(answer []byte) (done bool, reply []byte, err error) {
	if len(answer) == 0 {
		return false, nil, errors.New("the broker answers the login with nothing")
	}
	return true, nil, nil
}

// refused says why MSK does not accept the credentials.
func (a *AWS) refused(path string, err error) (cause, remedy string) {
	return "MSK refuses the AWS credentials: " + diagnose.Line(err.Error()),
		"allow kafka-cluster:Connect on the cluster in the policy of the role or user, compare " + path + ".region with that of the cluster, and the clock of this machine"
}

// inPolicy is what to do about a missing right: MSK asks the policy, and no list of rights.
const inPolicy = "allow it in the policy of the role or user: docs/guides/kafka-login.md lists the actions"

// examine reports the credentials. It returns false if it finds no credentials.
func (a *AWS) examine(ctx context.Context, x *config.Examination) bool {
	creds, found, err := a.credentials(ctx)
	if none, ok := errors.AsType[*bearer.Error](err); ok {
		x.Note(doctor.Broken, "AWS credentials", x.File.Redact(none.Cause), "no broker lets the pipeline in", none.Remedy)
		return false
	}
	said := "from " + cmp.Or(creds.Source, "the AWS configuration") + ", region " + cmp.Or(a.Region, found.Region, "that of the brokers")
	if creds.CanExpire {
		said += ", renewed at " + creds.Expires.UTC().Format(time.RFC3339)
	}
	x.Note(doctor.Fine, "AWS credentials", said, "", "")
	return true
}
